T=$(python3 -c "import torch,os;print(os.path.dirname(torch.__file__))")
O=$(find build/dev/CMakeFiles/torch_lazy_core.dir build/dev -name "*.o" -path "*torch_lazy_core*" | sort -u)
X=$(find build/dev -name "*.o" -path "*meta*" | sort -u)
g++ -O2 -std=c++20 -Isrc -Iinclude -Ibuild/dev/include -I$T/include -I$T/include/torch/csrc/api/include scratch/convbench.cpp $O -o /tmp/convbench -L$T/lib -Wl,-rpath,$T/lib -ltorch -ltorch_cpu -lc10 -lgomp -ldl -Wl,--allow-shlib-undefined 2>&1 | tail -5
