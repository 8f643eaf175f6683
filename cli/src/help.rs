//! The sections behind the options in the help and the manual page of a command: examples,
//! environment variables, exit statuses.

use std::io;
use std::path::Path;

/// Writes the manual pages of `command` into a directory. clap_mangen puts the texts of this file
/// into one section `EXTRA`; each heading in it becomes a section of its own.
pub fn write_pages(command: clap::Command, directory: &Path) -> io::Result<()> {
    // Generated elsewhere first: `directory` may hold pages of other programs.
    let made = tempfile::tempdir()?;
    clap_mangen::generate_to(command, made.path())?;
    std::fs::create_dir_all(directory)?;
    for entry in std::fs::read_dir(made.path())? {
        let entry = entry?;
        let page = std::fs::read_to_string(entry.path())?;
        std::fs::write(directory.join(entry.file_name()), with_sections(&page))?;
    }
    Ok(())
}

fn with_sections(page: &str) -> String {
    let Some((before, extra)) = page.split_once("\n.SH EXTRA\n") else { return page.into() };
    let is_heading = |line: &str| {
        let is_capital = |c: char| c.is_ascii_uppercase() || c == ' ';
        !line.is_empty() && !line.starts_with(' ') && line.chars().all(is_capital)
    };
    // Text without a heading of its own.
    let mut page = format!("{before}\n");
    if !extra.lines().next().is_some_and(is_heading) {
        page.push_str(".SH NOTES\n");
    }
    let mut lines = extra.lines().peekable();
    while let Some(line) = lines.next() {
        // A section is set apart without an empty line.
        if line.is_empty() && lines.peek().is_some_and(|next| is_heading(next)) {
            continue;
        }
        if is_heading(line) {
            page.push_str(".SH ");
        }
        page.push_str(line);
        page.push('\n');
    }
    page
}

pub const OF_RECV: &str = "\
EXAMPLES
  hamlyn recv demo --output copy                  from `hamlyn send demo < original`
  hamlyn recv report --allow anyone > report      also from other users, who send to USER@report

ENVIRONMENT
  HAMLYN_DIR         directory of the names of services for this user alone
  HAMLYN_SHARED_DIR  directory of the names of services for other users [default: /run/hamlyn]
  HAMLYN_LISTEN      address and port at which other hosts connect
  HAMLYN_SECRET      file with the secret shared with other hosts; see `hamlyn keys`

EXIT STATUS
  0: the transfer is complete, and the sender knows it. 1: it is not. 2: the command line is wrong.";

pub const OF_SEND: &str = "\
EXAMPLES
  hamlyn send demo < original                     to `hamlyn recv demo`
  hamlyn send alice@report < report               to another user
  hamlyn send hamlyn://192.0.2.1:7000/demo < f    to another host

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR, HAMLYN_SECRET    as for `hamlyn recv`

EXIT STATUS
  0: the receiver confirmed the whole transfer. 1: it did not. 2: the command line is wrong.";

pub const OF_RELAY: &str = "\
EXAMPLES
  hamlyn relay hamlyn://192.0.2.1:7000/prices                      `prices` on this host, for this user
  hamlyn relay hamlyn://192.0.2.1:7000/prices --as eu-prices --allow anyone --history 1

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as for `hamlyn recv`
  HAMLYN_SECRET, HAMLYN_TRUSTED    for the publisher's host, and the others of `hamlyn keys`
  HAMLYN_LISTEN                    if set, the relay serves other hosts, too
  HAMLYN_APERTURE_BYTES_MAX        most bytes of pools of a process

EXIT STATUS
  0: the publisher ended normally. 1: the publisher was absent too long (--wait, --outage), or its \
  samples cannot be served here. 2: the command line is wrong. A signal ends the relay like any \
  program; subscribers then learn that samples may be missing at the end.";

pub const OF_STAT: &str = "\
EXAMPLES
  hamlyn stat                  all services that this user may ask
  hamlyn stat orders --watch   one, again and again
  hamlyn stat --prometheus --output /var/lib/node_exporter/hamlyn.prom

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as the services have them

EXIT STATUS
  0: every process answered; with --watch=SECONDS, the last of --times. 1: a process did not answer, \
  or shows its figures to other users only. 2: the command line is wrong.";

pub const OF_WHY: &str = "\
EXAMPLES
  hamlyn why orders
  sudo hamlyn why alice@report
  hamlyn why hamlyn://192.0.2.1:7000/demo

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as the services have them
  HAMLYN_SECRET, HAMLYN_TRUSTED    for services of other hosts, and the others of `hamlyn keys`

EXIT STATUS
  0: the service exists. 1: it does not, or cannot be reached. 2: the command line is wrong.";

pub const OF_TOP: &str = "\
EXAMPLES
  hamlyn top                    all services that this user may ask, until q or Ctrl-C
  hamlyn top --once orders      one look, in lines
  hamlyn top --links            the links on which a program waits, then the busiest

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as the services have them

EXIT STATUS
  0: q ended it, or (--once) every process answered. 1: a service on the command line did not \
  answer, or the terminal cannot be used. 2: the command line is wrong. Ctrl-C in a terminal acts \
  like q; a signal ends the command like any program (the shell reports 128 and its number).";

pub const OF_EXPORTER: &str = "\
EXAMPLES
  hamlyn exporter                             all services that this user may ask, at 127.0.0.1:9464
  hamlyn exporter orders --listen [::1]:9465
  curl http://127.0.0.1:9464/metrics

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as the services have them

EXIT STATUS
  It runs until a signal ends it (the shell reports 128 and its number), even if no service \
  answers. 1: it cannot listen at the address. 2: the command line is wrong.";

pub const OF_NAMES: &str = "\
EXAMPLES
  hamlyn names
  hamlyn names --json | jq 'select(.is_alive == false).path'
  hamlyn names --clean

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    directories of the services' names, as the services have them

EXIT STATUS
  0: the list was printed, even if it is empty. 1: a stale name could not be removed (--clean), or the \
  list could not be printed. 2: the command line is wrong.";

pub const OF_SETUP: &str = "\
EXAMPLES
  sudo hamlyn setup alice bob
  hamlyn setup --tmpfiles alice | sudo tee /etc/tmpfiles.d/hamlyn.conf

ENVIRONMENT
  HAMLYN_SHARED_DIR    the directory [default: /run/hamlyn]

EXIT STATUS
  0: the directories exist. 1: they do not, such as without root. 2: the command line is wrong.";

#[cfg(feature = "tls")]
pub const OF_KEYS: &str = "\
EXAMPLES
  hamlyn keys demo.secret                                    one secret, for all hosts
  hamlyn keys ca --certificate a.example,192.0.2.1           an authority, and a host's certificate
  hamlyn keys ca --certificate a.example,192.0.2.1 --force   renewed, before it expires

  A certificate expires no later than its authority. Before the authority expires, make \
  another in another directory, and concatenate both authority.pem into the file that \
  HAMLYN_TRUSTED names on every host while you replace their certificates. Existing links \
  go on; new links need the new certificates, which a process reads when it starts.

EXIT STATUS
  0: the files were made. 1: they were not, or some existed already. 2: the command line is wrong.";

pub const OF_RUN: &str = "\
EXAMPLES
  hamlyn run -n 4 -- ./program --its-own arguments
  hamlyn run -n 16 --hosts a.example,b.example -- /opt/program

EXIT STATUS
  0: every rank ended with 0. Otherwise the status of the first rank that failed, or 128 and the
  number of the signal that ended it. 1: the ranks could not be started.
  2: the command line is wrong. A program's own status may be 1 or 2, too.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_page_has_a_section_for_each_heading() {
        let page = ".SH OPTIONS\n\\-h\n.SH EXTRA\nEXAMPLES\n  one\n\nEXIT STATUS\n  0: A B\n.SH VERSION\nv1\n";
        let named =
            ".SH OPTIONS\n\\-h\n.SH EXAMPLES\n  one\n.SH EXIT STATUS\n  0: A B\n.SH VERSION\nv1\n";
        assert_eq!(with_sections(page), named);
        assert_eq!(with_sections(named), named);
        assert_eq!(with_sections("x\n.SH EXTRA\nStart here.\n"), "x\n.SH NOTES\nStart here.\n");
    }
}
