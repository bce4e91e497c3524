"""How the downstream classifiers that are not ours are made.

The list is that of DP-MERF's benchmark, which dp-promise reports the mean of: eleven of
scikit-learn, with xgboost beside them. Two settings differ from DP-MERF's. AdaBoost is SAMME, since
scikit-learn dropped SAMME.R; the linear support vectors stop at scikit-learn's own tolerance.
"""

from typing import Any

from fedtranscribe.config.evaluation import XGBOOST


def make(name: str, seed: int) -> Any:
    """A fresh classifier of `SKLEARN`, or xgboost's, with scikit-learn's interface.

    Args:
        name: one of them.
        seed: public randomness.
    """
    if name == XGBOOST:
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=50, colsample_bytree=0.1, random_state=seed)
    from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, svm, tree
    from sklearn.neural_network import MLPClassifier

    match name:
        case "logistic-regression":
            return linear_model.LogisticRegression(max_iter=5_000, random_state=seed)
        case "random-forest":
            return ensemble.RandomForestClassifier(class_weight="balanced", random_state=seed)
        case "gaussian-nb":
            return naive_bayes.GaussianNB()
        case "bernoulli-nb":
            return naive_bayes.BernoulliNB(binarize=0.5)
        case "linear-svc":
            return svm.LinearSVC(loss="hinge", max_iter=10_000, random_state=seed)
        case "decision-tree":
            return tree.DecisionTreeClassifier(class_weight="balanced", random_state=seed)
        case "lda":
            return discriminant_analysis.LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5)
        case "adaboost":
            return ensemble.AdaBoostClassifier(n_estimators=100, random_state=seed)
        case "sklearn-mlp":
            return MLPClassifier(random_state=seed)
        case "bagging":
            return ensemble.BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed)
        case "gradient-boosting":
            return ensemble.GradientBoostingClassifier(
                subsample=0.1, n_estimators=50, random_state=seed
            )
    raise ValueError(name)
