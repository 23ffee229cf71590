# Defines the imported target TorchLazy::libtorch from an installed PyTorch: its headers and its
# shared libraries, nothing else. TorchConfig.cmake is not used on purpose: for a CUDA build of
# PyTorch it demands a CUDA toolkit and changes global flags, and nothing here needs either.
#
# Where PyTorch is looked for, first match wins:
#   1. TORCH_INSTALL_PREFIX or Torch_DIR (both are set by find_package(Torch))
#   2. CMAKE_PREFIX_PATH
#   3. TORCH_LAZY_TORCH_HINTS, set by whoever includes this file

if(TARGET TorchLazy::libtorch)
  return()
endif()

set(_hints "")
if(TORCH_INSTALL_PREFIX)
  list(APPEND _hints "${TORCH_INSTALL_PREFIX}")
endif()
if(Torch_DIR)
  list(APPEND _hints "${Torch_DIR}/../../..")
endif()

find_path(TORCH_LAZY_TORCH_INCLUDE_DIR
  NAMES ATen/ATen.h
  HINTS ${_hints}
  PATHS ${TORCH_LAZY_TORCH_HINTS}
  PATH_SUFFIXES include ../../include  # the latter: a prefix that is torch.utils.cmake_prefix_path
  NO_CMAKE_SYSTEM_PATH
)
unset(_hints)
if(NOT TORCH_LAZY_TORCH_INCLUDE_DIR)
  message(FATAL_ERROR
    "PyTorch was not found. Install it for the Python interpreter in use "
    "(pip install torch==2.13.0), or point CMAKE_PREFIX_PATH to a libtorch folder.")
endif()
mark_as_advanced(TORCH_LAZY_TORCH_INCLUDE_DIR)

get_filename_component(TORCH_LAZY_TORCH_PREFIX "${TORCH_LAZY_TORCH_INCLUDE_DIR}/.." REALPATH)
set(TORCH_LAZY_TORCH_LIB_DIR "${TORCH_LAZY_TORCH_PREFIX}/lib")

# PyTorch's version, from its own header: major.minor.patch.
set(_version_header "${TORCH_LAZY_TORCH_PREFIX}/include/torch/headeronly/version.h")
if(NOT EXISTS "${_version_header}")
  set(_version_header
    "${TORCH_LAZY_TORCH_PREFIX}/include/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${_version_header}" _version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX MATCHALL "[0-9]+" _version_parts "${_version_lines}")
list(JOIN _version_parts "." TORCH_LAZY_TORCH_VERSION)
set(TORCH_LAZY_TORCH_VERSION_HEADER "${_version_header}")
unset(_version_header)
unset(_version_lines)
unset(_version_parts)

foreach(_name IN ITEMS torch torch_cpu c10)
  set(_path "${TORCH_LAZY_TORCH_LIB_DIR}/${CMAKE_SHARED_LIBRARY_PREFIX}${_name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
  if(NOT EXISTS "${_path}")
    message(FATAL_ERROR "PyTorch at ${TORCH_LAZY_TORCH_PREFIX} has no ${_path}.")
  endif()
  set(_torch_lazy_${_name} "${_path}")
endforeach()
unset(_name)
unset(_path)

add_library(TorchLazy::libtorch INTERFACE IMPORTED)
set_target_properties(TorchLazy::libtorch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${TORCH_LAZY_TORCH_PREFIX}/include;${TORCH_LAZY_TORCH_PREFIX}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "${_torch_lazy_torch};${_torch_lazy_torch_cpu};${_torch_lazy_c10}"
  INTERFACE_COMPILE_FEATURES cxx_std_20
)
if(UNIX AND NOT APPLE)
  # libtorch.so has no symbols of its own: it only pulls in the libraries with the kernels, so a
  # linker that drops unused libraries would drop the CUDA kernels with it. And what PyTorch's own
  # libraries refer to (cuBLAS, cuDNN, ...) is not ours to resolve while linking.
  set_target_properties(TorchLazy::libtorch PROPERTIES
    INTERFACE_LINK_OPTIONS
      "LINKER:--push-state,--no-as-needed,${_torch_lazy_torch},--pop-state;LINKER:--allow-shlib-undefined")
endif()
