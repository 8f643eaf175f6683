//! The `hamlyn` command.
fn main() {}
