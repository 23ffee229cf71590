export CC=/usr/bin/gcc CXX=/usr/bin/g++
cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DTORCH_LAZY_CODEGEN=OFF -DTORCH_LAZY_DEVELOP=ON -DPython_EXECUTABLE=$(which python3) -DCMAKE_INSTALL_PREFIX=$PWD/python/torch_lazy > /tmp/cm.log 2>&1 || tail -20 /tmp/cm.log
ninja -C build/dev torch_lazy torch_lazy_python > /tmp/nj.log 2>&1 || tail -20 /tmp/nj.log
cmake --install build/dev --component torch_lazy > /tmp/in.log 2>&1 || tail /tmp/in.log
