# Compiler launcher, linker, warnings and sanitizers. Defines the target torch_lazy_warnings.
include(CheckLinkerFlag)

if(TORCH_LAZY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TORCH_LAZY_CCACHE_PROGRAM ccache)
  mark_as_advanced(TORCH_LAZY_CCACHE_PROGRAM)
  if(TORCH_LAZY_CCACHE_PROGRAM)
    # ccache looks into a precompiled header only when told that these differences do not matter.
    # Paths below the sources count as relative ones, so that clones share what is compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "${TORCH_LAZY_CCACHE_PROGRAM}")
    if(TORCH_LAZY_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options(-fpch-preprocess)
    endif()
  endif()
endif()

if(TORCH_LAZY_LINKER STREQUAL "auto")
  foreach(linker IN ITEMS mold lld)
    check_linker_flag(CXX "-fuse-ld=${linker}" TORCH_LAZY_HAVE_${linker})
    if(TORCH_LAZY_HAVE_${linker})
      add_link_options("-fuse-ld=${linker}")
      break()
    endif()
  endforeach()
elseif(NOT TORCH_LAZY_LINKER STREQUAL "default")
  add_link_options("-fuse-ld=${TORCH_LAZY_LINKER}")
endif()

if(TORCH_LAZY_SANITIZE)
  # vptr would need the type information of PyTorch classes that PyTorch does not export.
  add_compile_options("-fsanitize=${TORCH_LAZY_SANITIZE}" -fno-sanitize=vptr -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${TORCH_LAZY_SANITIZE}")
endif()

add_library(torch_lazy_warnings INTERFACE)
target_compile_options(torch_lazy_warnings INTERFACE
  -Wall -Wextra $<$<BOOL:${TORCH_LAZY_WERROR}>:-Werror>)
