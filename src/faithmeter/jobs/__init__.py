"""The jobs people come with, each a page of plain calls. The command line only parses and prints."""

from faithmeter.data import DataSpec
from faithmeter.jobs.adopting import adopt
from faithmeter.jobs.attacking import attack, attacked_rows
from faithmeter.jobs.auditing import AuditOptions, audit
from faithmeter.jobs.checking import check, in_words
from faithmeter.jobs.comparing import JUDGES as COMPARED_JUDGES
from faithmeter.jobs.comparing import MEASURES as COMPARED_MEASURES
from faithmeter.jobs.comparing import WAYS, compare
from faithmeter.jobs.explaining import explain, read_texts
from faithmeter.jobs.measuring import MeasureOptions, measure
from faithmeter.jobs.reporting import compared, report, roar_verdict
from faithmeter.jobs.roaring import RoarOptions, go_on, roar
from faithmeter.jobs.scaling import scale
from faithmeter.jobs.selecting import SelectOptions, select
from faithmeter.jobs.serving import serve
from faithmeter.jobs.suite_file import read_suite, ready_suites, suite_text
from faithmeter.jobs.suiting import EngineOptions, bench_suite
from faithmeter.jobs.summarising import pool
from faithmeter.jobs.synthetic import synthetic_roar
from faithmeter.jobs.training import TrainingOptions, resume, train
from faithmeter.jobs.transferring import transfer
from faithmeter.reports.attack import attack_sections
from faithmeter.reports.audit import audit_sections
from faithmeter.reports.select import select_sections
from faithmeter.reports.transfer import transfer_sections
from faithmeter.roar_run import RoarRun
from faithmeter.run import Run
from faithmeter.workers import workers_here

__all__ = [
    "COMPARED_JUDGES",
    "COMPARED_MEASURES",
    "WAYS",
    "AuditOptions",
    "DataSpec",
    "EngineOptions",
    "MeasureOptions",
    "RoarOptions",
    "RoarRun",
    "Run",
    "SelectOptions",
    "TrainingOptions",
    "adopt",
    "attack",
    "attack_sections",
    "attacked_rows",
    "audit",
    "audit_sections",
    "bench_suite",
    "check",
    "compare",
    "compared",
    "explain",
    "go_on",
    "in_words",
    "measure",
    "pool",
    "read_suite",
    "read_texts",
    "ready_suites",
    "report",
    "resume",
    "roar",
    "roar_verdict",
    "scale",
    "select",
    "select_sections",
    "serve",
    "suite_text",
    "synthetic_roar",
    "train",
    "transfer",
    "transfer_sections",
    "workers_here",
]
