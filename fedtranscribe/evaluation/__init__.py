"""What was learned, measured the way the field measures it.

classifiers  the downstream classifiers that are not ours
nets         MLP and CNN, chosen on synthetic images
downstream   trained on synthetic images, tested on real ones
features     a feature network of public images, where there are no Inception weights
fidelity     FID, IS, precision and recall
neighbours   the nearest real records of synthetic images: private
evaluate     one finished run -> all of it, and what of it may be published
compared_run what a comparison reads of one run
comparison   several finished runs -> a table and the privacy-accuracy curve
figures      what is drawn
"""

from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.evaluation.comparison import Comparison, compare
from fedtranscribe.evaluation.evaluate import check_libraries, evaluate

__all__ = ["Comparison", "EvaluationSettings", "check_libraries", "compare", "evaluate"]
