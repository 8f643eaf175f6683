//! Both ends in Rust: outcomes, one-way calls, and peers that lie.

use hamlyn::protocol::{CallError, Client, Manager, Server, ServerConfig};
use hamlyn::{Access, Config};
use hamlyn_rpc::{
    Asked, Auth, Body, Call, Caller, Encoder, Error, Outcome, Program, Refusal, Reply, answer,
};
use std::cell::Cell;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const PROGRAM: u32 = 0x2000_0033;

const SQUARE: u32 = 1;
const NOTE: u32 = 2;
const NOTES: u32 = 3;
const FAIL: u32 = 4;
const USER: u32 = 5;

struct Both {
    managers: [Manager; 2],
    server: Server,
    _dir: tempfile::TempDir,
}

impl Both {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = || Manager::with_config(Config::from_env().unwrap().dir(dir.path())).unwrap();
        let managers = [manager(), manager()];
        let server = Server::new(&managers[0], ServerConfig::default()).unwrap();
        server.serve("program", Access::SameUser).unwrap();
        managers[0].start_progress().unwrap();
        Self { managers, server, _dir: dir }
    }

    /// Answers with `serve` while `call` runs.
    fn run(&self, serve: impl FnOnce(&Server) + Send, call: impl FnOnce(&Manager)) {
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&self.server));
            call(&self.managers[1]);
            self.server.begin_drain().unwrap();
        });
    }
}

fn serve(server: &Server) {
    let notes = Cell::new(0);
    let carry_out = |asked: &mut Asked<'_>, results: &mut Encoder| {
        match asked.procedure {
            SQUARE => {
                let number = i64::from(asked.arguments.i32()?);
                results.i64(number * number);
            }
            NOTE => {
                notes.set(notes.get() + asked.arguments.u32()?);
                return Err(Refusal::Silent);
            }
            NOTES => _ = results.u32(notes.get()),
            FAIL => {
                results.u32(1);
                return Err(Refusal::SystemError);
            }
            USER => _ = results.u32(asked.peer.as_ref().and_then(|p| p.uid).unwrap()),
            _ => return Err(Refusal::NoProcedure),
        }
        Ok(())
    };
    let programs =
        [1, 3].map(|version| Program { number: PROGRAM, version, carry_out: &carry_out });
    while let Ok(request) = server.receive(None) {
        answer(request, &programs, LIMIT).unwrap();
    }
}

fn outcome(result: Result<hamlyn_rpc::Answered, Error>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(Error::Failed(outcome)) => outcome,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_caller_learns_results_and_what_was_wrong() {
    Both::new().run(serve, |manager| {
        let caller = |program, version| {
            Caller::connect(manager, "program", (program, version), LIMIT).unwrap()
        };
        let first = caller(PROGRAM, 1);
        let squared = first.call(SQUARE, |to| _ = to.i32(-12), LIMIT).unwrap();
        assert_eq!(squared.results().i64(), Ok(144));
        let user = first.call(USER, |_| {}, LIMIT).unwrap();
        let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(user.results().u32(), Ok(own));
        assert_eq!(outcome(first.call(0, |_| {}, LIMIT)), Outcome::Success);
        assert_eq!(outcome(first.call(99, |_| {}, LIMIT)), Outcome::NoProcedure);
        assert_eq!(outcome(first.call(SQUARE, |_| {}, LIMIT)), Outcome::GarbageArguments);
        assert_eq!(outcome(first.call(FAIL, |_| {}, LIMIT)), Outcome::SystemError);
        let versions = Outcome::OtherVersion { low: 1, high: 3 };
        assert_eq!(outcome(caller(PROGRAM, 2).call(0, |_| {}, LIMIT)), versions);
        assert_eq!(outcome(caller(7, 1).call(0, |_| {}, LIMIT)), Outcome::NoProgram);
        for _ in 0..200 {
            first.call_one_way(NOTE, |to| _ = to.u32(1), LIMIT).unwrap();
        }
        let notes = first.call(NOTES, |_| {}, LIMIT).unwrap();
        assert_eq!(notes.results().u32(), Ok(200));
    });
}

#[test]
fn a_server_answers_no_message_that_is_no_call() {
    Both::new().run(serve, |manager| {
        let client = Client::connect(manager, "program", LIMIT).unwrap();
        let none = Auth::default();
        let call = Call {
            xid: 7,
            program: PROGRAM,
            version: 1,
            procedure: 0,
            credential: none,
            verifier: none,
        };
        let mut whole = Encoder::new();
        call.encode(&mut whole);
        for length in 0..whole.bytes().len() {
            let asked = client.call(&whole.bytes()[..length], LIMIT);
            assert!(matches!(asked, Err(CallError::Declined)), "{length}: {asked:?}");
        }
        let mut other = whole.bytes().to_vec();
        other[11] = 3;
        let reply = client.call(&other, LIMIT).unwrap();
        let reply = Reply::decode(&mut hamlyn_rpc::Decoder::new(&reply)).unwrap();
        assert_eq!(reply, Reply { xid: 7, body: Body::OtherRpc { low: 2, high: 2 } });
        assert!(client.call(whole.bytes(), LIMIT).is_ok());
    });
}

#[test]
fn a_caller_refuses_the_reply_to_another_call_and_bytes_that_are_none() {
    let lie = |server: &Server| {
        let mut number = 0;
        while let Ok(request) = server.receive(None) {
            let xid = u32::from_be_bytes(request[..4].try_into().unwrap());
            let (verifier, outcome) = (Auth::default(), Outcome::Success);
            let mut to = Encoder::new();
            let reply = match number {
                0 => Reply { xid: xid + 1, body: Body::Accepted { verifier, outcome } },
                1 => Reply { xid, body: Body::Unauthenticated(5) },
                _ => Reply { xid, body: Body::OtherRpc { low: 3, high: 4 } },
            };
            reply.encode(&mut to);
            let bytes = to.bytes();
            let cut = if number < 3 { 0 } else { number - 2 };
            request.reply(&bytes[..bytes.len().saturating_sub(cut)], LIMIT).unwrap();
            number += 1;
        }
    };
    Both::new().run(lie, |manager| {
        let caller = Caller::connect(manager, "program", (PROGRAM, 1), LIMIT).unwrap();
        let call = || caller.call(0, |_| {}, LIMIT).unwrap_err();
        assert!(matches!(call(), Error::OtherCall { .. }));
        assert!(matches!(call(), Error::Unauthenticated(5)));
        assert!(matches!(call(), Error::OtherRpc { low: 3, high: 4 }));
        for _ in 0..25 {
            assert!(matches!(call(), Error::Malformed));
        }
    });
}
