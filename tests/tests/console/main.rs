//! The console in a real Chromium: each page with real traffic behind it, hostile names, changes, the keyboard.
//!
//! What is done in the browser is in tests/console, a file for each case. Screenshots are in target/tests/console.

mod browser;
mod pages;
