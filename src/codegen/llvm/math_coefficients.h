// Made by tools/fit_polynomials.py: lowest power first.
// clang-format off
#pragma once

#include <cstdint>

namespace torch_lazy::codegen::math {

// error 2^-28.2 (2^-28.26 before rounding)
inline constexpr double kExpF32[] = {
    0x1.fffffcp-2, 0x1.55548ap-3, 0x1.555850p-5, 0x1.123f1cp-7, 0x1.6acc7ep-10};

// error 2^-57.88 (2^-57.88 before rounding)
inline constexpr double kExpF64[] = {
    0x1.000000000000ap-1, 0x1.55555555554fbp-3, 0x1.55555555505dap-5, 0x1.1111111127127p-7,
    0x1.6c16c184c475ap-10, 0x1.a01a012fef0a2p-13, 0x1.a019985a7a1a2p-16, 0x1.71df1497c53c4p-19,
    0x1.28af0f45a5664p-22, 0x1.ada0519e261c6p-26};

// error 2^-29.22 (2^-29.22 before rounding)
inline constexpr double kExpPartF32[] = {
    0x1.000220p-1, 0x1.55559cp-3};

inline constexpr double kExpTableF32[][16] = {
    {0x1.000000p+0, 0x1.0b5586p+0, 0x1.172b84p+0, 0x1.2387a6p+0, 0x1.306fe0p+0, 0x1.3dea64p+0,
    0x1.4bfdaep+0, 0x1.5ab07ep+0, 0x1.6a09e6p+0, 0x1.7a1148p+0, 0x1.8ace54p+0, 0x1.9c4918p+0,
    0x1.ae89fap+0, 0x1.c199bep+0, 0x1.d5818ep+0, 0x1.ea4afap+0},
    {0x0.0p+0, 0x1.8d96d4p-25, -0x1.9c0c22p-27, 0x1.964904p-25, 0x1.125002p-25, 0x1.370be4p-25,
    -0x1.0a3550p-25, -0x1.00d8acp-27, 0x1.26055cp-26, -0x1.05cb44p-25, 0x1.67a1cap-28,
    0x1.a3b5e4p-28, -0x1.f9c304p-27, -0x1.6961b4p-28, -0x1.a5217cp-28, 0x1.61428ep-28}};

// error 2^-29.95 (2^-30.13 before rounding)
inline constexpr double kLogF32[] = {
    0x1.555556p-2, -0x1.ffff02p-3, 0x1.999860p-3, -0x1.559bbap-3, 0x1.24d75cp-3, -0x1.f333fcp-4,
    0x1.bb5554p-4, -0x1.07e28ep-3, 0x1.dff712p-4};

// error 2^-54.59 (2^-55.13 before rounding)
inline constexpr double kLogF64[] = {
    0x1.5555555555555p-1, 0x1.9999999999f44p-2, 0x1.24924923fd287p-2, 0x1.c71c72aaa2018p-3,
    0x1.745cbcf974aa1p-3, 0x1.3b274c073d354p-3, 0x1.0ebaee93b7663p-3, 0x1.154e67ed6ab36p-3};

// error 2^-27.68 (2^-27.73 before rounding)
inline constexpr double kTanhF32[] = {
    -0x1.555532p-2, 0x1.1106f6p-3, -0x1.b8359ep-5, 0x1.51f888p-6, -0x1.750c66p-8};

// error 2^-61.12 (2^-61.17 before rounding)
inline constexpr double kTanhF64[] = {
    -0x1.5555555555552p-2, 0x1.1111111110c44p-3, -0x1.ba1ba1b9d0722p-5, 0x1.664f487077dcbp-6,
    -0x1.226e32c53b139p-7, 0x1.d6d3587f024dbp-9, -0x1.7d9c1b95d5b52p-10, 0x1.350ab618fed6cp-11,
    -0x1.f109c92d01374p-13, 0x1.7ff8c45b1f937p-14, -0x1.fa34b522f7391p-16, 0x1.94feecc69fdfep-18};

// error 2^-31.6 (2^-34.16 before rounding)
inline constexpr double kSinhF32[] = {
    0x1.555556p-3, 0x1.1110e0p-7, 0x1.a022bcp-13, 0x1.756c60p-19};

// error 2^-61.76 (2^-63.32 before rounding)
inline constexpr double kSinhF64[] = {
    0x1.5555555555556p-3, 0x1.111111111101ep-7, 0x1.a01a01a037275p-13, 0x1.71de3a3b05470p-19,
    0x1.ae646ff701629p-26, 0x1.6116f386fcfe7p-33, 0x1.b5c9079f4ac2cp-41};

// error 2^-30.62 (2^-30.89 before rounding)
inline constexpr double kAsinhF32[] = {
    -0x1.55554cp-3, 0x1.33301ap-4, -0x1.6d5b46p-5, 0x1.ec8042p-6, -0x1.57de5ep-6, 0x1.bcca90p-7,
    -0x1.cb3782p-8, 0x1.3934f8p-9, -0x1.94a904p-12};

// error 2^-59.63 (2^-60.46 before rounding)
inline constexpr double kAsinhF64[] = {
    -0x1.5555555555548p-3, 0x1.3333333332011p-4, -0x1.6db6db6d1bb39p-5, 0x1.f1c71c497cbf7p-6,
    -0x1.6e8b9fbf0295dp-6, 0x1.1c4e9aaccc6c6p-6, -0x1.c9967c5a0e783p-7, 0x1.7a71e18caaf29p-7,
    -0x1.3f6c055e2b74fp-7, 0x1.111a5c79bb68bp-7, -0x1.d35950954ae18p-8, 0x1.8795dad0abc8fp-8,
    -0x1.36b9585adc5dbp-8, 0x1.bf6f4521002b9p-9, -0x1.16b4f5d195e76p-9, 0x1.1d9334aac4d91p-10,
    -0x1.c69a54cd29b69p-12, 0x1.04ad54c9ba93bp-13, -0x1.7c5d7652fa49cp-16, 0x1.07d4fc17e5625p-19};

// error 2^-29.37 (2^-29.44 before rounding)
inline constexpr double kAtanhF32[] = {
    0x1.555540p-2, 0x1.99a676p-3, 0x1.234d98p-3, 0x1.e40058p-4, 0x1.a6b46ap-5, 0x1.693f42p-3};

// error 2^-57.05 (2^-57.06 before rounding)
inline constexpr double kAtanhF64[] = {
    0x1.55555555555ccp-2, 0x1.999999998786bp-3, 0x1.2492492c42bf5p-3, 0x1.c71c6e7d042b6p-4,
    0x1.745d81402c125p-4, 0x1.3b0b26c1ea97dp-4, 0x1.1187871866640p-4, 0x1.d9066409e5f48p-5,
    0x1.ea2825bebb995p-5, 0x1.dc0ba5f678199p-7, 0x1.29004c9f7c196p-3, -0x1.3966b0785ddbfp-3,
    0x1.cc841591d8d34p-3};

// error 2^-27.62 (2^-27.62 before rounding)
inline constexpr double kAsinF32[] = {
    0x1.5555c8p-3, 0x1.330204p-4, 0x1.747bb2p-5, 0x1.8c3efap-6, 0x1.595b66p-5};

// error 2^-59.81 (2^-59.85 before rounding)
inline constexpr double kAsinF64[] = {
    0x1.5555555555577p-3, 0x1.333333332e130p-4, 0x1.6db6db72127aep-5, 0x1.f1c71a94e9465p-6,
    0x1.6e8bdee195057p-6, 0x1.1c49f04031843p-6, 0x1.ca1f909123738p-7, 0x1.75856c5852220p-7,
    0x1.613d464c26becp-7, 0x1.e5e93c084f433p-9, 0x1.63a09c0f723d9p-6, -0x1.58040163daf95p-6,
    0x1.0b48fc2e47cf9p-5};

// error 2^-30.41 (2^-30.46 before rounding)
inline constexpr double kAtanF32[] = {
    -0x1.55554ap-2, 0x1.9991e2p-3, -0x1.23b9a0p-3, 0x1.b223fep-4, -0x1.f2e282p-5};

// error 2^-59.42 (2^-59.44 before rounding)
inline constexpr double kAtanF64[] = {
    -0x1.555555555553dp-2, 0x1.9999999995854p-3, -0x1.24924922ac7afp-3, 0x1.c71c70e59d067p-4,
    -0x1.745cf8cd693cfp-4, 0x1.3b1117f2986d3p-4, -0x1.10eba9ea47374p-4, 0x1.df0e6bb1948f6p-5,
    -0x1.9cce92be88797p-5, 0x1.37ca8539db525p-5, -0x1.2550e0e19d49bp-6};

// error 2^-27.91 (2^-27.97 before rounding)
inline constexpr double kSinF32[] = {
    -0x1.555546p-3, 0x1.110778p-7, -0x1.995408p-13};

// error 2^-57.88 (2^-57.94 before rounding)
inline constexpr double kSinF64[] = {
    -0x1.5555555555548p-3, 0x1.111111110f730p-7, -0x1.a01a019be9227p-13, 0x1.71de35552936cp-19,
    -0x1.ae5e4b7d16758p-26, 0x1.5d8b518fa176bp-33};

// error 2^-32.97 (2^-33.01 before rounding)
inline constexpr double kCosF32[] = {
    0x1.55554ap-5, -0x1.6c0c28p-10, 0x1.99e842p-16};

// error 2^-63.91 (2^-63.96 before rounding)
inline constexpr double kCosF64[] = {
    0x1.555555555554bp-5, -0x1.6c16c16c15015p-10, 0x1.a01a019c8f197p-16, -0x1.27e4f7f17972cp-22,
    0x1.1ee9dbb1bce9ap-29, -0x1.8fa66df3107bap-37};

// error 2^-29.57 (2^-29.75 before rounding)
inline constexpr double kAcoshF32[] = {
    0x1.000000p+0, -0x1.555536p-4, 0x1.3324f2p-6, -0x1.6b95d0p-8, 0x1.cd6418p-10,
    -0x1.b14ec4p-12};

// error 2^-56.08 (2^-56.16 before rounding)
inline constexpr double kAcoshF64[] = {
    0x1.0000000000000p+0, -0x1.55555555553f7p-4, 0x1.333333330aeefp-6, -0x1.6db6db53ef85cp-8,
    0x1.f1c71431a59b1p-10, -0x1.6e8addc910c6bp-11, 0x1.1c43224573902p-12,
    -0x1.c8b1268d6d610p-14, 0x1.746847a644d26p-15, -0x1.23ef4008197dep-16,
    0x1.7bc3b3dc750d6p-18, -0x1.1e5bda2e71496p-20};

// error 2^-42.37 (2^-42.37 before rounding)
inline constexpr double kPowerLog2F64[] = {
    0x1.71547652b7e8ap+1, 0x1.ec709dcb67d86p-1, 0x1.2776bc4262f2dp-1, 0x1.a61ea63280c59p-2,
    0x1.46f1a5e08c329p-2, 0x1.29daee4b1dabap-2};

// error 2^-34.3 (2^-34.29 before rounding)
inline constexpr double kPowerExp2F64[] = {
    0x1.62e42fef7905bp-1, 0x1.ebfbe07af4997p-3, 0x1.c6b08dfbf978cp-5, 0x1.3b29f0bf4180ap-7,
    0x1.5d871968039e9p-10, 0x1.445ea129dac3fp-13, 0x1.00f87ced0af87p-16};

// error 2^-54.74 (2^-55.27 before rounding)
inline constexpr double kPowerLogF64[] = {
    0x1.9999999999999p-2, 0x1.2492492492baep-2, 0x1.c71c71c5621b7p-3, 0x1.745d188d4f69bp-3,
    0x1.3b133a553aa4fp-3, 0x1.1128711e15116p-3, 0x1.dcd2104b836e1p-4, 0x1.f71e4b17b9858p-4};

// error 2^-27.93 (2^-28.04 before rounding)
inline constexpr double kErfF32[] = {
    0x1.06eba8p-3, -0x1.812730p-2, 0x1.ce27fep-4, -0x1.b76954p-6, 0x1.4d034ap-8, -0x1.5500eep-11};

// error 2^-56.02 (2^-56.93 before rounding)
inline constexpr double kErfF64[] = {
    0x1.06eba8214db68p-3, -0x1.812746b03799dp-2, 0x1.ce2f21a03f8b8p-4, -0x1.b82ce311a9731p-6,
    0x1.565bcceed7de4p-8, -0x1.c02daeb67bd51p-11, 0x1.f9a296a30cd88p-14, -0x1.f4c82da9c7bd9p-17,
    0x1.b96b4710c7af4p-20, -0x1.5b8bf52afb3c4p-23, 0x1.d3d9ea42095fep-27, -0x1.a2315221e2da1p-31};

// error 2^-28.64 (2^-28.65 before rounding)
inline constexpr double kErfTailF32[] = {
    -0x1.15212cp-14, -0x1.20d394p+0, -0x1.45bf04p-1, -0x1.ad404ap-4, 0x1.733058p-6,
    -0x1.9d5390p-9, 0x1.b30482p-13};

// error 2^-59.19 (2^-59.52 before rounding)
inline constexpr double kErfTailF64[] = {
    -0x1.8c1094d46e86ap-23, -0x1.20dd556376134p+0, -0x1.45f4329eb4e91p-1, -0x1.a4d9a83adf2cbp-4,
    0x1.388e7ff5cdfa9p-6, 0x1.27f4d1c916772p-12, -0x1.d03e0f9be1dabp-10, 0x1.5109d25a2ce3cp-11,
    -0x1.819869a6f8121p-15, -0x1.2487f9f805e57p-14, 0x1.7789a394f7df3p-15,
    -0x1.137e5bae20bf6p-16, 0x1.20ac6b3aa4e95p-18, -0x1.c5bc617fd1aa8p-21,
    0x1.0c0e945ddc9fbp-23, -0x1.d0974b7fb38c8p-27, 0x1.178b56017c432p-30,
    -0x1.a1ee9bf975b73p-35, 0x1.2470f031ec6bfp-40};

inline constexpr double kErfTableF32[][32] = {
    {0x0.0p+0, 0x1.1f5e1ap-3, 0x1.1af54ep-2, 0x1.9dd0d2p-2, 0x1.0a7ef6p-1, 0x1.3f196ep-1,
    0x1.6c1c98p-1, 0x1.91724ap-1, 0x1.af767ap-1, 0x1.c6dad2p-1, 0x1.d8865ep-1, 0x1.e5768cp-1,
    0x1.eea556p-1, 0x1.f4f694p-1, 0x1.f92d08p-1, 0x1.fbe61ep-1, 0x1.fd9ae2p-1, 0x1.fea422p-1,
    0x1.ff4048p-1, 0x1.ff9960p-1, 0x1.ffcaa8p-1, 0x1.ffe514p-1, 0x1.fff2d0p-1, 0x1.fff9bap-1,
    0x1.fffd1ap-1, 0x1.fffeb4p-1, 0x1.ffff70p-1, 0x1.ffffc4p-1, 0x1.ffffe8p-1, 0x1.fffff6p-1,
    0x1.fffffcp-1, 0x1.fffffep-1},
    {0x1.20dd74p+0, 0x1.1c62eep+0, 0x1.0f5d10p+0, 0x1.f5f0c6p-1, 0x1.c1efc8p-1, 0x1.86e970p-1,
    0x1.492e4ep-1, 0x1.0cab72p-1, 0x1.a91214p-2, 0x1.45e9bcp-2, 0x1.e4655ep-3, 0x1.5ce5b4p-3,
    0x1.e72390p-4, 0x1.499d4cp-4, 0x1.b05514p-5, 0x1.12ce86p-5, 0x1.529b32p-6, 0x1.946180p-7,
    0x1.d412dcp-8, 0x1.06907cp-8, 0x1.1d8188p-9, 0x1.2ce670p-10, 0x1.335df8p-11, 0x1.30500cp-12,
    0x1.2404bep-13, 0x1.0f995ep-14, 0x1.e9ab96p-16, 0x1.abd5d6p-17, 0x1.6a4ea0p-18,
    0x1.296004p-19, 0x1.d923c0p-21, 0x1.6cd05ap-22},
    {0x1.6fa94ep-16, -0x1.1c634ep-3, -0x1.0f5c28p-2, -0x1.786ed6p-2, -0x1.c1f382p-2,
    -0x1.e8a6ecp-2, -0x1.edcfc4p-2, -0x1.d636f2p-2, -0x1.a90a4ep-2, -0x1.6e9e62p-2,
    -0x1.2ec5ecp-2, -0x1.dfb418p-3, -0x1.6d6c84p-3, -0x1.0bd904p-3, -0x1.7a6abep-4,
    -0x1.016608p-4, -0x1.52fa76p-5, -0x1.ae1b24p-6, -0x1.07eb38p-6, -0x1.35e502p-7,
    -0x1.611010p-8, -0x1.85123ep-9, -0x1.aba076p-10, -0x1.ad35cep-11, -0x1.8507d0p-12,
    -0x1.b28ce2p-13, -0x1.ee7ab8p-14, -0x1.9da824p-14, -0x1.3e6dc8p-14, -0x1.1d987cp-19,
    0x1.09d0d6p-17, 0x1.1a9210p-15},
    {-0x1.8269fcp-2, -0x1.6eb550p-2, -0x1.3c32d6p-2, -0x1.e093bep-3, -0x1.2bdf0ap-3,
    -0x1.c96132p-5, 0x1.b2440cp-6, 0x1.7b0a84p-4, 0x1.1a8c84p-3, 0x1.4bf4b0p-3, 0x1.568e5ap-3,
    0x1.4318f6p-3, 0x1.1bfca2p-3, 0x1.d655b0p-4, 0x1.717222p-4, 0x1.14827ap-4, 0x1.8bac80p-5,
    0x1.0f3e78p-5, 0x1.64f5bep-6, 0x1.c385d2p-7, 0x1.12c9c6p-7, 0x1.421e56p-8, 0x1.6bedd0p-9,
    0x1.8c8404p-10, 0x1.a0d7aap-11, 0x1.a700e0p-12, 0x1.9e8248p-13, 0x1.885beap-14,
    0x1.66da00p-15, 0x1.3d3384p-16, 0x1.0f0ae0p-17, 0x1.bfdc9ep-19},
    {0x1.625ac0p-6, 0x1.1c8a82p-4, 0x1.01fb76p-3, 0x1.497dc0p-3, 0x1.7dc44ap-3, 0x1.6f53b4p-3,
    0x1.490e3ep-3, 0x1.f86d00p-4, 0x1.f8cc64p-5, 0x1.42d922p-6, 0x1.0c9d8cp-11, -0x1.179fa2p-5,
    -0x1.251196p-5, -0x1.71f7f6p-5, -0x1.495950p-5, -0x1.d190f2p-5, -0x1.768f64p-6,
    -0x1.3d584ep-6, -0x1.31e5e0p-7, -0x1.cb3d8ep-6, -0x1.826e2cp-6, -0x1.14bc44p-6,
    0x1.a3cf80p-10, -0x1.83e924p-8, -0x1.aa7474p-7, 0x1.644ebap-11, 0x1.6f8456p-8,
    0x1.cda02ep-7, 0x1.dc1a0ep-7, -0x1.947b88p-10, -0x1.7a8c0ap-9, -0x1.25cff8p-7}};

// error 2^-29.64 (2^-30.44 before rounding)
inline constexpr double kErfcF32[] = {
    0x1.04fc9ap+0, 0x1.b66a20p-2, 0x1.146474p-3, 0x1.dbc9c0p-6, 0x1.813c52p-9, -0x1.973e10p-12,
    -0x1.399dd8p-13, 0x1.a8d1e4p-19, 0x1.93370cp-18};

inline constexpr double kErfcLineF32[] = {
    -0x1.b5aceep+0, 0x1.1e2456p+3};

// error 2^-56.01 (2^-56.12 before rounding)
inline constexpr double kErfcF64[] = {
    0x1.ef32990f1f035p-1, 0x1.fde881bc9f9fap-2, 0x1.b8f8b87709743p-3, 0x1.36f123e10953cp-4,
    0x1.507012d7557bep-6, 0x1.da524435384c0p-9, 0x1.e423907eb2681p-14, -0x1.26eeb2524e3c1p-13,
    -0x1.0bb38bcc82769p-15, 0x1.a763e1cc8052bp-19, 0x1.3db26ed1eab86p-19, 0x1.b12e94b1b221bp-27,
    -0x1.690b8c9c6ff6fp-23, -0x1.1dfae7b30d20cp-27, 0x1.c497706c3090cp-27,
    0x1.8453a95d28f90p-31, -0x1.2d7a789e6a4f1p-30, -0x1.20f60ad6e7e4dp-35,
    0x1.3730bfe786e35p-34, 0x1.68af8287699d0p-41};

inline constexpr double kErfcLineF64[] = {
    -0x1.4ba2e8ba2e8a7p+0, 0x1.1e7904a7904a7p+3};

// error 2^-24.57 (2^-27.41 before rounding)
inline constexpr double kErfinvF32[] = {
    0x1.805c5ep+0, 0x1.f91e8ap-3, -0x1.11c9a8p-8, -0x1.486704p-10, 0x1.ca6432p-13,
    -0x1.4bbeaap-18, -0x1.d8f79ep-19, 0x1.edd6ecp-22, 0x1.e496d0p-26, -0x1.1aef4ap-27};

// error 2^-26.31 (2^-26.98 before rounding)
inline constexpr double kErfinvTailF32[] = {
    0x1.6a9efcp+1, 0x1.006dc6p+0, 0x1.357b04p-7, -0x1.f49f68p-8, 0x1.74e612p-8, -0x1.d69710p-9,
    0x1.843c10p-10, -0x1.191aeap-14, -0x1.42da38p-12, 0x1.f95620p-14};

// error 2^-27.29 (2^-27.29 before rounding)
inline constexpr double kErfinvTailF64[] = {
    0x1.6a9efbf016cfdp+1, 0x1.006dccaf0c55fp+0, 0x1.357d9b144d15bp-7, -0x1.f514f9d311b55p-8,
    0x1.74ff993dd0abap-8, -0x1.d192ad1efadffp-9, 0x1.7e5147dd86392p-10, -0x1.316d7cd30e73ep-13,
    -0x1.002e3c00a6d74p-12, 0x1.658a1377f3e07p-13, -0x1.be58c6c405f76p-15,
    0x1.e9136eac20fa9p-18, 0x1.1431bf4c9626ap-22, -0x1.b40e95df243fcp-23, 0x1.34c4a9c3bc788p-26};

// error 2^-55.92 (2^-56.24 before rounding)
inline constexpr double kLgammaNear1F64[] = {
    -0x1.2788cfc6fb619p-1, 0x1.a51a6625307d5p-1, -0x1.9a4d55beab317p-2, 0x1.151322ac7cca8p-2,
    -0x1.a8b9c17a7d2e8p-3, 0x1.5b40cb115ceabp-3, -0x1.2703a204706f1p-3, 0x1.010b364055c4dp-3,
    -0x1.c8064fb36ff7cp-4, 0x1.9a01f30843edcp-4, -0x1.749327dd9d258p-4, 0x1.55715ed99fb82p-4,
    -0x1.3a5421dfabc7fp-4, 0x1.230a8414fd62cp-4, -0x1.1c3786f003d0ap-4, 0x1.204f21dd8b22cp-4,
    -0x1.806de8343a154p-5};

// error 2^-54.61 (2^-60.61 before rounding)
inline constexpr double kLgammaBetweenF64[] = {
    -0x1.eeb95b094c191p-4, 0x1.2aed059bd608ep-5, 0x1.de9e64df22e5dp-2, -0x1.1ae55b18074cap-3,
    0x1.e0f840db36519p-5, -0x1.da59d53675c06p-6, 0x1.f9ca391d84da1p-7, -0x1.1a8ba577a0ff0p-7,
    0x1.456f766f37f84p-8, -0x1.7edb26ef74a97p-9, 0x1.c9430d91b1cacp-10, -0x1.149b286caa6cbp-10,
    0x1.588f105f6d07fp-11, -0x1.9b6fe1b8bed34p-12, 0x1.d8f8674623787p-14,
    -0x1.704942983ff03p-13, 0x1.47caf4df21b04p-11};

// error 2^-56.25 (2^-62.33 before rounding)
inline constexpr double kLgammaNear2F64[] = {
    0x1.b0ee6072093cep-2, 0x1.4a34cc4a60fa6p-2, -0x1.13e001a5574c1p-4, 0x1.51322ac7d86e8p-6,
    -0x1.e404fc224e2dep-8, 0x1.7add6eaf0b837p-9, -0x1.38ac5b8699e01p-10, 0x1.0b36acdfda006p-11,
    -0x1.d3fdcab873fb7p-13, 0x1.a12ae43440e56p-14, -0x1.78cbbbf657685p-15,
    0x1.574617181b741p-16, -0x1.3c68407ceb088p-17, 0x1.35fadc0d71162p-18,
    -0x1.4ec0732ae1d59p-19, 0x1.34bc9c65c3a90p-20, -0x1.126413718b804p-22};

// error 2^-57.59 (2^-60.58 before rounding)
inline constexpr double kStirlingF64[] = {
    0x1.5555555555555p-4, -0x1.6c16c16c09d19p-9, 0x1.a01a00fc6f94ap-11, -0x1.3812c084e82a1p-11,
    0x1.b8e73d4cb7bbcp-11, -0x1.e7ca934748fc6p-10, 0x1.222ab362c535bp-8};

// error 2^-54.17 (2^-58.51 before rounding)
inline constexpr double kDigammaF64[] = {
    0x1.e6f0cbb873616p-1, -0x1.b1cb63005eea2p-2, 0x1.eca189b8e7564p-3, -0x1.2feeeb98a627ep-3,
    0x1.8512e58fc0acdp-4, -0x1.fb44202c0c98fp-5, 0x1.4de9aa529548ap-5, -0x1.b9f8b08301f61p-6,
    0x1.25646299977bcp-6, -0x1.86357e346f19ap-7, 0x1.03c2dbe6b420dp-7, -0x1.5a03f13ad6f7cp-8,
    0x1.ccba18d841849p-9, -0x1.339a74eb998bcp-9, 0x1.9fce1e6353db6p-10, -0x1.0de1330ae2485p-10,
    0x1.30a8cfc3c636cp-11, -0x1.0a6bfc0957b7bp-11, 0x1.56017a0dafc98p-11,
    -0x1.b8cf7049d5863p-14, -0x1.e041afd6e85e8p-12, -0x1.b58b4749d1017p-13,
    0x1.123fa649772ffp-11};

// error 2^-58.47 (2^-58.46 before rounding)
inline constexpr double kDigammaTailF64[] = {
    -0x1.555555555533bp-4, 0x1.1111110d36b83p-7, -0x1.0410376fda400p-8, 0x1.110b627644008p-8,
    -0x1.eea8bab56e413p-8, 0x1.4462f8d6bd477p-6, -0x1.999a01163172cp-5};

inline constexpr double kDigammaRootF64[] = {
    0x1.762d86356be3fp+0, 0x1.b86a722197829p-54};

inline constexpr uint64_t kTwoOverPi[] = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

}  // namespace torch_lazy::codegen::math
