"""The law: units, events, accounting, calibration, forecasts, published figures, the ledger.

Needs no torch. Every guarantee names its unit and adjacency; only sound figures are called ε.
"""

from fedtranscribe.privacy.accountant import (
    delta_of,
    epsilon,
    epsilon_filter,
    epsilon_rdp,
    guarantee,
    quote,
    sound_table,
)
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.calibrate import (
    EnsembleLayout,
    label_epsilon0,
    mean_sensitivity,
    noise_std,
    row_mu,
    vote_eta,
)
from fedtranscribe.privacy.closed_forms import gaussian_delta, gaussian_epsilon, gaussian_mu
from fedtranscribe.privacy.diffusion import Discriminator, DpPromisePlan, DpSadPlan, Teacher
from fedtranscribe.privacy.diffusion_noise import CalibrateBy, calibrated, sound_epsilon
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian, Together, event_from_json
from fedtranscribe.privacy.forecasts import Forecast, Verdict, forecast, label_forecast
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.ledger import Head, Ledger, Reservation
from fedtranscribe.privacy.published import Published, published_sigma
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Guarantee, NoiseMode, RowAnswer, Unit

__all__ = [
    "Adjacency",
    "Budget",
    "CalibrateBy",
    "Discriminator",
    "DpPromisePlan",
    "DpSadPlan",
    "EnsembleLayout",
    "Event",
    "ExponentialVotes",
    "Forecast",
    "Gaussian",
    "Guarantee",
    "Head",
    "Ledger",
    "MechanismRelease",
    "NoiseMode",
    "PoissonGaussian",
    "PrivacyPlan",
    "Published",
    "RandomizedResponse",
    "ReleasedImages",
    "Reservation",
    "RowAnswer",
    "Teacher",
    "Together",
    "Unit",
    "Verdict",
    "calibrated",
    "delta_of",
    "epsilon",
    "epsilon_filter",
    "epsilon_rdp",
    "event_from_json",
    "forecast",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "guarantee",
    "label_epsilon0",
    "label_forecast",
    "mean_sensitivity",
    "noise_std",
    "published_sigma",
    "quote",
    "row_mu",
    "sound_epsilon",
    "sound_table",
    "vote_eta",
]
