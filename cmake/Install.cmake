# What is installed, all of it below one folder that is the Python package torch_lazy (or a plain
# prefix for C++ alone): _C, lib/, include/, share/cmake/TorchLazy/.
include(CMakePackageConfigHelpers)

set(package_dir share/cmake/TorchLazy)

install(TARGETS torch_lazy EXPORT TorchLazyTargets LIBRARY DESTINATION lib COMPONENT torch_lazy)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/torch_lazy" DESTINATION include
  COMPONENT torch_lazy FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_BINARY_DIR}/include/torch_lazy/version.h" DESTINATION include/torch_lazy
  COMPONENT torch_lazy)

# torch_lazy_warnings is a private dependency of a shared library: not part of the export.
install(EXPORT TorchLazyTargets NAMESPACE TorchLazy:: DESTINATION ${package_dir}
  COMPONENT torch_lazy)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/TorchLazyConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/TorchLazyConfig.cmake"
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TorchLazyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/TorchLazyConfig.cmake"
  "${PROJECT_BINARY_DIR}/TorchLazyConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/Libtorch.cmake"
  DESTINATION ${package_dir} COMPONENT torch_lazy)

if(TARGET torch_lazy_codegen)  # opened at run time, from beside the library
  install(TARGETS torch_lazy_codegen LIBRARY DESTINATION lib COMPONENT torch_lazy)
endif()
if(TARGET torch_lazy_python)
  install(TARGETS torch_lazy_python LIBRARY DESTINATION . COMPONENT torch_lazy)
endif()
