"""Write the table of PyTorch's own C++ Meta kernels, callable without the dispatcher.

Reads the installed headers (ATen/ops/*_meta_dispatch.h declare the kernels, ATen/ops/*_ops.h name
the operators and their signatures) and writes meta_table_0.cpp .. meta_table_N-1.cpp for the layout
registry.
"""

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# Meta kernels whose result differs from the CPU kernel's. Whatever src/capture/layouts defines
# itself replaces the generated entry and needs no line here.
LEFT_OUT: dict[str, str] = {
    "aten::isin.Scalar_Tensor_out": "it promises a vector without elements",
    "aten::linalg_lu_solve": "a complex result may carry the conjugate bit",
    "aten::linalg_lu_solve.out": "a complex result may carry the conjugate bit",
    "aten::triangular_solve.X": "out tensors without elements get other strides on the CPU",
}

DECLARATION = re.compile(r"^TORCH_API\s+(?P<returns>.+?)\s*\b(?P<name>\w+)\((?P<arguments>.*)\);$")
OPERATOR = re.compile(
    r"struct TORCH_API (?P<struct>\w+) \{\s*"
    r"using schema = (?P<returns>[^(]+?) \((?P<arguments>.*)\);"
    r"(?s:.*?)name = \"(?P<name>[^\"]+)\";"
    r"(?s:.*?)overload_name = \"(?P<overload>[^\"]*)\";"
)


@dataclass(frozen=True)
class Kernel:
    operator: str  # "aten::add.Tensor"
    struct: str  # "add_Tensor", in at::_ops
    function: str  # "add", in at::meta
    signature: str
    header: str  # "add": the stem shared by the headers


def split_arguments(text: str) -> list[str]:
    """Split at the commas that stand outside of brackets and string literals."""
    parts, depth, start, quoted = [], 0, 0, False
    for position, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "<({":
            depth += 1
        elif character in ">)}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def signature_of(returns: str, argument_types: list[str]) -> str:
    spelled = f"{returns}({','.join(argument_types)})".replace("::std::", "std::")
    return re.sub(r"\s+", "", spelled.replace("const ", "const@"))


def declared_type(argument: str) -> str:
    """The type in `const at::Scalar & alpha=1`."""
    return re.sub(r"\b\w+$", "", argument.split("=", 1)[0].strip())


def read_meta_functions(header: Path) -> dict[str, set[str]]:
    functions = defaultdict(set)
    for line in header.read_text().splitlines():
        if match := DECLARATION.match(line):
            types = [declared_type(argument) for argument in split_arguments(match["arguments"])]
            functions[match["name"]].add(signature_of(match["returns"], types))
    return functions


def is_defined(operators: Path, stem: str, base: str) -> bool:
    """The headers also declare in-place functions that the library registers but does not export.
    Those that it does export are structured (they have a *_meta.h) or have a Meta kernel of their
    own."""
    if not base.endswith("_") or (operators / f"{stem}_meta.h").exists():
        return True
    own_kernel = re.compile(rf"\b{re.escape(base[:-1])}\w*_meta_\w*\(")
    return own_kernel.search((operators / f"{stem}_native.h").read_text()) is not None


def read_kernels(operators: Path) -> list[Kernel]:
    kernels = []
    for header in sorted(operators.glob("*_meta_dispatch.h")):
        stem = header.name.removesuffix("_meta_dispatch.h")
        functions = read_meta_functions(header)
        for match in OPERATOR.finditer((operators / f"{stem}_ops.h").read_text()):
            operator = match["name"] + ("." + match["overload"] if match["overload"] else "")
            if operator in LEFT_OUT:
                continue
            signature = signature_of(match["returns"], split_arguments(match["arguments"]))
            base = match["name"].removeprefix("aten::")
            if not is_defined(operators, stem, base):
                continue
            for function in (base, f"{base}_symint", f"{base}_outf", f"{base}_symint_outf"):
                if signature in functions.get(function, ()):
                    kernels.append(Kernel(operator, match["struct"], function, signature, stem))
                    break
    return kernels


def into_shards(kernels: list[Kernel], count: int) -> list[list[Kernel]]:
    """Equal signatures share a shard, so that each boxing wrapper is instantiated once."""
    by_signature = defaultdict(list)
    for kernel in kernels:
        by_signature[kernel.signature].append(kernel)
    shards: list[list[Kernel]] = [[] for _ in range(count)]
    for position, signature in enumerate(sorted(by_signature)):
        shards[position % count] += by_signature[signature]
    return [sorted(shard, key=lambda kernel: kernel.operator) for shard in shards]


def all_tables(count: int) -> str:
    """The one entry point, in shard 0: calls every shard."""
    declared = "".join(
        f"void add_meta_table_{index}(LayoutRegistry& registry);\n" for index in range(count)
    )
    calls = "".join(f"  add_meta_table_{index}(registry);\n" for index in range(count))
    return f"\n{declared}\nvoid add_meta_tables(LayoutRegistry& registry) {{\n{calls}}}\n"


def shard_source(index: int, count: int, kernels: list[Kernel]) -> str:
    headers = sorted({kernel.header for kernel in kernels})
    includes = "".join(
        f"#include <ATen/ops/{header}_{kind}.h>\n"
        for header in headers
        for kind in ("meta_dispatch", "ops")
    )
    rows = "".join(
        f'  add(registry, "{kernel.operator}",\n'
        f"      static_cast<at::_ops::{kernel.struct}::schema*>(&at::meta::{kernel.function}));\n"
        for kernel in kernels
    )
    return f"""\
// Generated by tools/generate_meta_table.py from PyTorch's headers. Do not edit.
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
{includes}
#include "capture/layouts/registry.h"

namespace torch_lazy {{
namespace {{

template <class Function>
void add(LayoutRegistry& registry, const char* name, Function* function) {{
  registry.add(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}}

}}  // namespace

void add_meta_table_{index}(LayoutRegistry& registry) {{
{rows}}}
{all_tables(count) if index == 0 else ""}
}}  // namespace torch_lazy
"""


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-include", type=Path, required=True, help="folder that holds ATen/")
    parser.add_argument("--out", type=Path, required=True, help="folder for meta_table_*.cpp")
    parser.add_argument("--shards", type=int, default=4)
    arguments = parser.parse_args()

    kernels = read_kernels(arguments.torch_include / "ATen" / "ops")
    if not kernels:
        print(f"no *_meta_dispatch.h found below {arguments.torch_include}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    shards = into_shards(kernels, arguments.shards)
    for index, shard in enumerate(shards):
        source = shard_source(index, len(shards), shard)
        write_if_changed(arguments.out / f"meta_table_{index}.cpp", source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
