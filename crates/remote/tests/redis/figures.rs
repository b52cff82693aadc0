//! Figures: printed, never asserted. `cargo test --release -p tidegate-remote --test redis figures -- --nocapture --ignored`
