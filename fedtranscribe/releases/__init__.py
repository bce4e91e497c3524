"""A finished run handed over in a form that others can use and check.

statement    what `privacy.json` says, typed, and when it has to say that nothing is private
recomputed   events of a release -> every ε that it may state
describe     a finished run -> its statement; where nothing private gets through
card         the statement -> the model card, and what a card must repeat word by word
onnx_export  networks as ONNX, without a trace of the machine they were made on
writing      all of it into a folder, whole or not at all
loading      that folder -> networks to use
verification whether a folder is what it says
pushing      that folder -> a repository on the Hugging Face hub
"""

from fedtranscribe.releases.loading import Release, load
from fedtranscribe.releases.pushing import PushPlan, plan_push, push
from fedtranscribe.releases.statement import PrivacyStatement
from fedtranscribe.releases.verification import Verification, VerificationStep, verify
from fedtranscribe.releases.writing import MadeRelease, make_release

__all__ = [
    "MadeRelease",
    "PrivacyStatement",
    "PushPlan",
    "Release",
    "Verification",
    "VerificationStep",
    "load",
    "make_release",
    "plan_push",
    "push",
    "verify",
]
