"""A chat platform in memory, for tests, `intern try`, import and backtest."""
