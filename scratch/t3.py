import torch, torch_lazy
REAL=torch_lazy._C.real_device()
# sanity on views and in-place etc
def prog(dev):
    out=[]
    x=torch.arange(24.,device=dev).reshape(2,3,4)
    v=x[1]; w=v.t(); w.add_(1); out.append(x.clone())
    x[:, ::2].mul_(2); out.append((x.stride(), w.stride(), w.cpu()))
    y=torch.empty(3,device=dev); torch.add(torch.ones(5,device=dev),1,out=y); out.append(y)
    z=torch.randn(4,4,device=dev,dtype=torch.complex64).conj(); out.append((z@z).sum()); out.append(z.imag)
    a=torch.zeros(10,device=dev); a[torch.tensor([1,2,3])]=5; out.append(a)
    b=torch.randn(4,3,8,8,device=dev).to(memory_format=torch.channels_last); out.append(b.stride()); out.append((b*2).stride()); out.append(torch.nn.functional.conv2d(b,torch.randn(5,3,3,3,device=dev)).stride())
    c=torch.randn(5,device=dev); out.append(c[c>0]); out.append(torch.nonzero(c)); out.append(c.sort()); out.append(c.tolist())
    d=torch.ones(3,3,device=dev); d.fill_diagonal_(7); out.append(d); d.t_(); d.unsqueeze_(0); out.append(d.shape)
    e=torch.randn(3,4).t().to(dev); out.append(e.stride()); out.append(torch.abs(e).stride()); out.append(torch.empty_like(e).stride())
    f=torch.randn(6,device=dev); f.resize_(2,5); f.zero_(); out.append(f)
    g=torch.randn(6,device=dev); h=g.data; h.add_(1); out.append(g)
    s=torch.randn(4,device=dev,requires_grad=True); (s*s).sum().backward(); out.append(s.grad)
    out.append(torch.randperm(10,device=dev)); out.append(torch.multinomial(torch.ones(5,device=dev),2)); out.append(torch.rand(3,device=dev))
    q=torch.randn(2,2,16,8,device=dev); out.append(torch.nn.functional.scaled_dot_product_attention(q,q,q,is_causal=True))
    return out
import torch.utils._pytree as pt
torch.manual_seed(0); A=prog(REAL); torch.manual_seed(0); B=prog("lazy")
for i,(a,b) in enumerate(zip(A,B)):
    fa,fb=pt.tree_leaves(a),pt.tree_leaves(b)
    for p,q in zip(fa,fb):
        ok = torch.allclose(p.cpu(),q.cpu(),rtol=1e-4,atol=1e-5) and p.stride()==q.stride() if isinstance(p,torch.Tensor) else p==q
        if not ok: print("DIFF",i,p,q)
print("done"); print(torch_lazy.metrics.fallbacks())
