"""Backtest and evaluation."""
