//! What each operation asks of the engine: the `Cost:` lines, counted.
