//! The `hamlyn` command.

fn main() -> std::process::ExitCode {
    hamlyn_cli::main(hamlyn_cli::run)
}
