"""Stand-in while the room is being built."""
import math, os
from dataclasses import dataclass
import numpy as np, torch
from scipy.special import ndtri
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.privacy.events import *
from fedtranscribe.privacy.units import *
from fedtranscribe.privacy.calibrate import NoiseMode
class OsNoise:
    private=True
    def for_query(self,q): return self
    def uniform(self,shape):
        n=math.prod(shape); k=np.frombuffer(os.urandom(8*n),np.uint64)>>np.uint64(11)
        return torch.from_numpy((k.astype(np.float64)+.5)/2**53).view(*shape)
    def gaussian(self,shape,std): return std*torch.from_numpy(ndtri(self.uniform(shape).numpy()))
NoiseSource=OsNoise
def gather_rows(x,i): return x.gather(-1,i.expand(*x.shape[:-2],*i.shape))
def unit_rows(x,h=1e-4):
    r=x/(x.norm(dim=-1,keepdim=True)+h); return torch.where(torch.isfinite(r).all(-1,keepdim=True),r,torch.zeros_like(r))
def mean_rows(raw,index_sets,*,shards,normalise):
    a=0
    for r in raw:
        r=gather_rows(r.double(),index_sets)
        r=unit_rows(r) if normalise=="unit" else torch.where(torch.isfinite(r).all(-1,keepdim=True),r,torch.zeros_like(r))
        a=a+r.sum(0)
    return a/shards
def vote_counts(logits,index_sets):
    a=0
    for l in logits:
        a=a+gather_rows(torch.nn.functional.one_hot(l.argmax(-1),l.shape[-1]).double(),index_sets).sum(0)
    return a
@dataclass
class NoisyMeanRows:
    shards:int; holders:int; noise_mode:NoiseMode; noise_std:float; answer:str
    @property
    def kind(self): return AnswerKind(self.answer)
    def release(self,rows,positional_ids=False):
        d=(2. if self.answer=="gradient" else 2**.5)*(1+1e-6)
        own=self.noise_std*math.sqrt(self.holders)
        c={u:{a:Gaussian(d/(self.shards if u==Unit.RECORD else 1)/own,rows) for a in Adjacency} for u in Unit}
        return Release("noisy-mean-rows",rows,c)
    def privatise(self,m,noise): return (m+noise.gaussian(m.shape,self.noise_std)).float()
class TopKRandomizedResponse:
    kind=AnswerKind.LABEL
class ExponentialVotes:
    kind=AnswerKind.LABEL
