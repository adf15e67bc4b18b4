"""Placeholder."""
from esscher.studies.paper.ledger import Check
import pandas as pd
def judge_alpha_heads(table): return Check(says="x", verdict="undecided", found="x", rule="x")
judge_argmax_heads = judge_alpha_heads
def draw_alpha_heads(table): pass
draw_argmax_heads = draw_alpha_heads
