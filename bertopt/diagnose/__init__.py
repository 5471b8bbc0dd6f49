"""Records -> Verdict / Why / Next: what bounds a pipeline, on what evidence, and what to try."""

from bertopt.diagnose.ladder import observe, verdict
from bertopt.diagnose.policy import Policy
from bertopt.diagnose.rules import RULES, Rule, findings

__all__ = ["RULES", "Policy", "Rule", "findings", "observe", "verdict"]
