import sys, os, time, statistics
sys.path.insert(0,os.getcwd()+'/bench')
import torch, torch_lazy, workloads
torch.set_num_threads(int(os.environ.get("T","2")))
name=[n for n in workloads.COMPILED if sys.argv[1] in n][0]
lazy=workloads.COMPILED[name]("lazy"); 
mode=os.environ.get("MODE","trace")
def mk(w):
    if mode=="replay": return torch_lazy.compile(w.step,is_compiling=True)
    def f():
        w.step(); torch_lazy.mark_step(); 
    return f
ours=mk(lazy)
def sync(): torch_lazy.wait_device_ops()
steps={"ours":lambda:(ours(),sync())}
if os.environ.get("E","1")=="1":
    eager=workloads.COMPILED[name]("cpu"); steps["eager"]=eager.step
for _ in range(12):
    for s in steps.values(): s()
times={k:[] for k in steps}
for i in range(int(os.environ.get("N","25"))):
    for k,s in steps.items():
        t=time.perf_counter()
        for _ in range(3): s()
        times[k].append((time.perf_counter()-t)/3*1e3)
m={k:(min(v),statistics.median(v)) for k,v in times.items()}
print(name, {k:"%.2f min %.2f med"%v for k,v in m.items()}, "ratio min %.3f med %.3f"%(m.get("eager",(0,0))[0]/m["ours"][0], m.get("eager",(0,0))[1]/m["ours"][1]))
