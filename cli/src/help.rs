//! What stands behind the options in the help and the manual page of a command: examples, variables of the
//! environment, exit statuses.

use std::io;
use std::path::Path;

/// Writes the manual pages of `command` into a directory. They come with what stands here as one section
/// `EXTRA`: each of its headings becomes that of a section.
pub fn write_pages(command: clap::Command, directory: &Path) -> io::Result<()> {
    // Not where pages of other programs lie.
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
    // What has no heading of its own.
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
  HAMLYN_DIR         where services for this user alone have their names
  HAMLYN_SHARED_DIR  where those for other users have theirs [default: /run/hamlyn]
  HAMLYN_LISTEN      address and port at which other hosts connect
  HAMLYN_SECRET      file with the secret that they have, too; see `hamlyn keys`

EXIT STATUS
  0: everything came, and the sender was told. 1: it did not. 2: the command line is wrong.";

pub const OF_SEND: &str = "\
EXAMPLES
  hamlyn send demo < original                     to `hamlyn recv demo`
  hamlyn send alice@report < report               to another user's
  hamlyn send hamlyn://192.0.2.1:7000/demo < f    to another host's

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR, HAMLYN_SECRET    as for `hamlyn recv`

EXIT STATUS
  0: the receiver said that it has everything. 1: it did not. 2: the command line is wrong.";

pub const OF_RELAY: &str = "\
EXAMPLES
  hamlyn relay hamlyn://192.0.2.1:7000/prices                      `prices` on this host, for this user
  hamlyn relay hamlyn://192.0.2.1:7000/prices --as eu-prices --allow anyone --history 1

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services here have their names, as for `hamlyn recv`
  HAMLYN_SECRET, HAMLYN_TRUSTED    for the publisher's host, and the others of `hamlyn keys`
  HAMLYN_LISTEN                    set, it serves other hosts, too
  HAMLYN_APERTURE_BYTES_MAX        most bytes of pools of a process

EXIT STATUS
  0: the publisher said that this was all. 1: there was none in time (--wait, --outage), or it cannot be \
  served here. 2: the command line is wrong. A signal ends it as it ends any program, and subscribers \
  are told that this may not be all.";

pub const OF_STAT: &str = "\
EXAMPLES
  hamlyn stat                  all services that this user may ask
  hamlyn stat orders --watch   one, again and again
  hamlyn stat --prometheus --output /var/lib/node_exporter/hamlyn.prom

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services are looked for, as they have it themselves

EXIT STATUS
  0: whoever was asked answered; with --watch=SECONDS, the last of --times. 1: somebody did not, or tells \
  its figures to others alone. 2: the command line is wrong.";

pub const OF_WHY: &str = "\
EXAMPLES
  hamlyn why orders
  sudo hamlyn why alice@report
  hamlyn why hamlyn://192.0.2.1:7000/demo

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services are looked for, as they have it themselves
  HAMLYN_SECRET, HAMLYN_TRUSTED    for services of other hosts, and the others of `hamlyn keys`

EXIT STATUS
  0: something is called so. 1: nothing is, or it cannot be reached. 2: the command line is wrong.";

pub const OF_TOP: &str = "\
EXAMPLES
  hamlyn top                    all services that this user may ask, until q or Ctrl-C
  hamlyn top --once orders      one look, in lines
  hamlyn top --links            the links on which somebody waits, then the busiest

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services are looked for, as they have it themselves

EXIT STATUS
  0: it was ended by q, or (--once) whoever was asked answered. 1: a service that was named did not \
  answer, or the terminal cannot be used. 2: the command line is wrong. Ctrl-C in a terminal is as q; \
  a signal ends it as it ends any program (128 and its number, says the shell).";

pub const OF_EXPORTER: &str = "\
EXAMPLES
  hamlyn exporter                             all services that this user may ask, at 127.0.0.1:9464
  hamlyn exporter orders --listen [::1]:9465
  curl http://127.0.0.1:9464/metrics

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services are looked for, as they have it themselves

EXIT STATUS
  It goes on until a signal ends it (128 and its number, says the shell), whether services answer or \
  not. 1: it cannot listen there. 2: the command line is wrong.";

pub const OF_NAMES: &str = "\
EXAMPLES
  hamlyn names
  hamlyn names --json | jq 'select(.is_alive == false).path'
  hamlyn names --clean

ENVIRONMENT
  HAMLYN_DIR, HAMLYN_SHARED_DIR    where services are looked for, as they have it themselves

EXIT STATUS
  0: they were listed, also where there are none. 1: a stale name could not be removed (--clean), or the \
  list not be printed. 2: the command line is wrong.";

pub const OF_SETUP: &str = "\
EXAMPLES
  sudo hamlyn setup alice bob
  hamlyn setup --tmpfiles alice | sudo tee /etc/tmpfiles.d/hamlyn.conf

ENVIRONMENT
  HAMLYN_SHARED_DIR    the directory [default: /run/hamlyn]

EXIT STATUS
  0: it is all there. 1: it is not, such as without root. 2: the command line is wrong.";

#[cfg(feature = "tls")]
pub const OF_KEYS: &str = "\
EXAMPLES
  hamlyn keys demo.secret                                    one secret, for all hosts
  hamlyn keys ca --certificate a.example,192.0.2.1           an authority, and a host's certificate
  hamlyn keys ca --certificate a.example,192.0.2.1 --force   the same host's again, before it ends

  A certificate ends no later than its authority. When that ends, make another in \
  another directory, and put both authority.pem, one behind the other, into the file \
  that HAMLYN_TRUSTED names on every host while their certificates are exchanged. What \
  has begun goes on; new links need the new ones, which a process reads when it starts.

EXIT STATUS
  0: the files are there. 1: they are not, or some were there already. 2: the command line is wrong.";

pub const OF_RUN: &str = "\
EXAMPLES
  hamlyn run -n 4 -- ./program --its-own arguments
  hamlyn run -n 16 --hosts a.example,b.example -- /opt/program

EXIT STATUS
  0: every rank ended with 0. Otherwise that of the first rank that failed, or 128 and the number of the \
  signal that ended it. 1: the ranks could not be started. 2: the command line is wrong. A program's own \
  status may be 1 or 2, too.";

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
