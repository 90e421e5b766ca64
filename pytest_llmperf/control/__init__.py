"""All HTTP that is not load: readiness, models, identity, calibration."""
