/* The code generator's C interface: text of a kernel in, machine code out. The library behind it
 * has LLVM inside and shows nothing else; it knows nothing of PyTorch. All functions may be called
 * from many threads at once. */
#ifndef TORCH_LAZY_CODEGEN_H
#define TORCH_LAZY_CODEGEN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Changes whenever this file, the kernel's text or the calling convention changes. */
#define TORCH_LAZY_CODEGEN_VERSION 1
int tlc_version(void);

/* A target: "host", or the names of x86-64 levels: "x86-64" (SSE2 only), "x86-64-v2", "x86-64-v3"
 * (AVX2 and FMA), "x86-64-v4". Null when code cannot be made for it; then *error (if asked for) is
 * a message to free with tlc_free. */
typedef struct tlc_target tlc_target;
tlc_target* tlc_open(const char* target, char** error);
void tlc_close(tlc_target* target);

/* The processor, its features and the build of the code generator: where these texts are equal, the
 * machine code can be exchanged. Lives as long as the target. */
const char* tlc_features(const tlc_target* target);

typedef struct {
  char* object; /* machine code behind a head of ours; free with tlc_free; null: failed */
  size_t size;
  char* error;       /* a message when it failed; free with tlc_free */
  double seconds[3]; /* making the loops, optimizing them, making machine code */
} tlc_result;

/* Machine code for the kernel. The same text gives the same bytes. */
tlc_result tlc_compile(const tlc_target* target, const char* kernel_text);

/* For people: "ir" before and "optimized" after LLVM's passes, "assembly". Free with tlc_free. */
char* tlc_show(const tlc_target* target, const char* kernel_text, const char* what, char** error);

/* Loads machine code made by tlc_compile (now, or by another process with equal features); other
 * bytes, of another version or processor, or damaged, are an error. The function is
 * `void (*)(const Call*)`, see kernel.h. Nothing in it may refer to symbols outside. */
typedef struct tlc_code tlc_code;
tlc_code* tlc_load(tlc_target* target, const char* object, size_t size, char** error);
void* tlc_function(const tlc_code* code);
void tlc_unload(tlc_code* code);

void tlc_free(void* memory);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
