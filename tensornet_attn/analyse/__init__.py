"""Analyses of attention from the papers: of core, maps, heads and experts, as numbers, plots and a report."""
