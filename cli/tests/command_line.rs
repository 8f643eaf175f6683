//! A user's first contact: help, errors that name the value and the allowed ones, manual pages and
//! completions.

use std::process::{Command, Output};

fn hamlyn(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hamlyn")).args(line.split_whitespace()).output().unwrap()
}

/// Subcommands that the command starts itself are hidden from users.
const INTERNAL: [&str; 4] = ["perf-peer", "perf-idle-end", "perf-end", "perf-protocol-end"];

fn error_of(line: &str) -> String {
    let output = hamlyn(line);
    assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn help_names_every_command_and_the_tour_is_a_program_of_its_own() {
    let output = hamlyn("--help");
    let text = String::from_utf8(output.stdout).unwrap();
    let commands = [
        "recv",
        "send",
        "relay",
        "perf",
        "stat",
        "top",
        "exporter",
        "why",
        "names",
        "setup",
        "keys",
        "man",
        "completions",
    ];
    for command in commands {
        assert!(text.contains(&format!("\n  {command} ")), "{command}: {text}");
    }
    for command in INTERNAL {
        assert!(!text.contains(command), "{command}: {text}");
    }
    assert!(output.status.success() && !text.contains("tour"), "{text}");
    let output = hamlyn("tour --quick");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hamlyn-tour"), "{output:?}");
}

#[test]
fn a_variable_that_is_no_setting_is_named_once_with_the_nearest_setting() {
    let dir = std::env::temp_dir();
    let output = Command::new(env!("CARGO_BIN_EXE_hamlyn"))
        .args(["names", "--json"])
        .env("HAMLYN_DIR", dir.join("hamlyn-of-nobody"))
        .env("HAMLYN_SHARD_DIR", "/secret")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let of_it: Vec<_> = said.lines().filter(|line| line.contains("SHARD")).collect();
    assert_eq!(
        of_it,
        [
            "hamlyn: HAMLYN_SHARD_DIR is set, and no setting is called so: it is ignored; the nearest is \
          HAMLYN_SHARED_DIR"
        ]
    );
    assert!(!said.contains("/secret"));
}

#[test]
fn a_wrong_value_is_an_error_that_names_it_and_what_is_allowed() {
    for (line, wrong, allowed) in [
        ("perf latency --size lots", "lots", "64KiB"),
        ("perf latency --mode fast", "fast", "blocking"),
        ("perf rate --count 0", "0", "1.."),
        ("perf rate --links -1", "-1", "0..=100000"),
        ("perf bandwidth --runs 1001", "1001", "1..=1000"),
        ("send --wait soon x", "soon", "number of seconds"),
        ("recv --allow root x", "root", "group:GID"),
        ("relay --when-slow never x", "never", "drop-oldest"),
        ("relay --outstanding 65 x", "65", "1..=64"),
        ("top --interval 0.1", "0.1", "0.2 or more"),
        ("exporter --listen here", "here", "--listen"),
        ("stat --output x", "--prometheus", "Usage"),
        ("recv", "<NAME>", "Usage"),
        ("nmaes", "nmaes", "names"),
    ] {
        let text = error_of(line);
        assert!(text.contains(wrong) && text.contains(allowed), "{line}: {text}");
    }
}

#[test]
fn manual_pages_are_generated_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("man");
    // Another program's page, in any encoding, is left as it is.
    let others: &[u8] = b".TH CAF\xc9 1\n.SH EXTRA\nA\n";
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("others.1"), others).unwrap();
    assert!(hamlyn(&format!("man {}", path.display())).status.success());
    assert_eq!(std::fs::read(path.join("others.1")).unwrap(), others);
    std::fs::remove_file(path.join("others.1")).unwrap();
    let pages = [
        "hamlyn.1",
        "hamlyn-perf.1",
        "hamlyn-perf-latency.1",
        "hamlyn-top.1",
        "hamlyn-exporter.1",
        "hamlyn-keys.1",
        "hamlyn-man.1",
        "hamlyn-completions.1",
    ];
    for page in pages {
        let text = std::fs::read_to_string(path.join(page)).unwrap_or_default();
        assert!(text.contains(".TH"), "{page}");
    }
    // The text that `whatis` shows.
    let text = std::fs::read_to_string(path.join("hamlyn.1")).unwrap();
    assert!(text.contains("\nhamlyn \\- Protected messages between programs"), "{text}");
    assert!(text.contains("\\-\\-quiet"), "{text}");
    let names = std::fs::read_dir(&path).unwrap().map(|page| page.unwrap().file_name());
    for name in names.map(|name| name.into_string().unwrap()) {
        let text = std::fs::read_to_string(path.join(&name)).unwrap();
        for command in INTERNAL {
            let dashed = format!("hamlyn\\-{}", command.replace('-', "\\-"));
            assert!(name != format!("hamlyn-{command}.1") && !text.contains(&dashed), "{name}");
        }
    }
}

#[test]
fn each_command_says_what_its_exit_status_means_and_has_examples() {
    let commands =
        ["recv", "send", "stat", "top", "exporter", "why", "names", "setup", "keys", "run"];
    for command in commands {
        let output = hamlyn(&format!("{command} --help"));
        let text = String::from_utf8(output.stdout).unwrap();
        for part in ["EXAMPLES\n", "EXIT STATUS\n", "2: the command line is wrong"] {
            assert!(text.contains(part), "{command}: {part}: {text}");
        }
    }
    // As it says, also of a name that is none.
    for line in ["stat a/b", "why a/b", "top --once a/b", "send a/b", "recv a/b", "exporter a/b"] {
        let text = error_of(line);
        assert!(text.contains("\"a/b\"") || text.contains("'a/b'"), "{line}: {text}");
    }
}

fn shell(command: &str) -> Output {
    let command = format!("exec {} {command}", env!("CARGO_BIN_EXE_hamlyn"));
    Command::new("sh").args(["-c", &command]).output().unwrap()
}

#[test]
fn what_is_printed_and_goes_nowhere_is_a_failure() {
    for line in
        ["names >&-", "names >/dev/full", "--help >/dev/full", "completions bash >/dev/full"]
    {
        let output = shell(line);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains("standard output"), "{line}: {error}");
        assert!(error.matches("os error").count() <= 1, "{line}: {error}");
    }
}

/// Bars are shown on a terminal alone, which this test has not.
#[test]
fn quiet_is_taken_before_and_behind_the_command() {
    for line in ["--quiet names", "names -q", "-q names --json"] {
        let output = hamlyn(line);
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

#[test]
fn completions_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let output = hamlyn(&format!("completions {shell}"));
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for command in ["perf", "top", "exporter", "man", "completions"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
        for command in ["perf-peer", "perf-idle-end", "perf-protocol-end"] {
            assert!(!text.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn a_report_of_a_failure_names_the_command() {
    let output = hamlyn("man /proc/none");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("hamlyn: "));
}

#[test]
fn setup_prints_what_would_make_the_directories_at_every_start() {
    let output = hamlyn("setup --tmpfiles root 54321");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("d /") && lines[0].ends_with(" 1777 root root -"), "{text}");
    assert!(lines[1].ends_with("/0 0711 0 - -") && lines[2].ends_with("/54321 0711 54321 - -"));
    let output = hamlyn("setup --tmpfiles root no-such-user-here");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("no-such-user-here"), "{text}");
    assert!(output.stdout.is_empty(), "half of a file");
}
