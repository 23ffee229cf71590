#include "backends/cpu/convolution.h"
#include "backends/cpu/product.h"
#include "base/settings.h"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <chrono>
#include <cstdio>
#include <vector>
#include <algorithm>
using namespace torch_lazy; using compile::Convolution;
struct S{int n,ic,h,oc,k,st,times;};
compile::View view(const at::Tensor& t){compile::View v;v.layout.sizes=t.sizes();v.layout.strides=t.strides();v.layout.dtype=t.scalar_type();return v;}
int main(int argc,char**argv){
 at::set_num_threads(argc>1?atoi(argv[1]):2); settings().products=ProductMode::own;
 std::vector<S> shapes={{8,3,64,64,7,2,1},
  {8,64,16,64,3,1,4},{8,64,16,128,3,2,1},{8,64,16,128,1,2,1},{8,128,8,128,3,1,3},{8,128,8,256,3,2,1},{8,128,8,256,1,2,1},
  {8,256,4,256,3,1,3},{8,256,4,512,3,2,1},{8,256,4,512,1,2,1},{8,512,2,512,3,1,3},
  {2,64,56,64,3,1,0},{2,128,28,128,3,1,0},{2,256,14,256,3,1,0},{8,512,7,512,3,1,0},{1,64,56,64,3,1,0},{1,512,7,512,3,1,0}};
 double tot[6]={};
 auto time=[&](auto fn){double best=1e9;for(int r=0;r<(getenv("R")?atoi(getenv("R")):30);r++){auto a=std::chrono::steady_clock::now();fn();best=std::min(best,std::chrono::duration<double>(std::chrono::steady_clock::now()-a).count());}return best*1e3;};
 int idx=0; int only=argc>2?atoi(argv[2]):-1; int which=argc>3?atoi(argv[3]):-1; for(auto&c:shapes){ if(only>=0 && idx++!=only) continue; int p=c.k/2, oh=(c.h+2*p-c.k)/c.st+1;
  auto x=at::randn({c.n,c.ic,c.h,c.h}),w=at::randn({c.oc,c.ic,c.k,c.k}),y=at::randn({c.n,c.oc,oh,oh});
  Convolution g{Convolution::Kind::forward,{c.st,c.st},{p,p},{1,1},1};
  auto ours=[&](Convolution::Kind k,const at::Tensor&a,const at::Tensor&b,at::Tensor out){ g.kind=k; compile::Product pr{view(a),view(b),view(out),g}; if(!has_convolution(pr)) return -1.0; return time([&]{convolve(pr,a.mutable_data_ptr<float>(),b.mutable_data_ptr<float>(),out.mutable_data_ptr<float>());});};
  std::vector<int64_t> st{c.st,c.st},pd{p,p},di{1,1};
  double t[6];
  t[0]= which>=0 && which!=0 ? 0 : time([&]{at::conv2d(x,w,{},st,pd,di,1);});
  t[1]= which>=0 && which!=1 ? 0 : ours(Convolution::Kind::forward,x,w,at::empty_like(y));
  t[2]= which>=0 && which!=2 ? 0 : time([&]{at::convolution_backward(y,x,w,at::nullopt,st,pd,di,false,{0,0},1,{true,false,false});});
  t[3]= which>=0 && which!=3 ? 0 : ours(Convolution::Kind::input_gradient,y,w,at::empty_like(x));
  t[4]= which>=0 && which!=4 ? 0 : time([&]{at::convolution_backward(y,x,w,at::nullopt,st,pd,di,false,{0,0},1,{false,true,false});});
  t[5]= which>=0 && which!=5 ? 0 : ours(Convolution::Kind::weight_gradient,y,x,at::empty_like(w));
  printf("%d x %4d %4d %3d k%d s%d x%d forward %.3f %.3f input %.3f %.3f weight %.3f %.3f\n",c.n,c.ic,c.oc,c.h,c.k,c.st,c.times,t[0],t[1],t[2],t[3],t[4],t[5]);
  for(int i=0;i<6;i++) tot[i]+=t[i]*c.times;}
 printf("total forward %.2f %.2f input %.2f %.2f weight %.2f %.2f\n",tot[0],tot[1],tot[2],tot[3],tot[4],tot[5]);
}
