//! The program of sum.x in Rust: it serves and calls the C programs beside it, and is called by them.
//!
//! ```text
//! sum                        both ends, in one process
//! sum serve SERVICE
//! sum call SERVICE NUMBER ..
//! ```

use hamlyn::protocol::{Manager, Server, ServerConfig};
use hamlyn::{Access, Config};
use hamlyn_rpc::{Asked, Caller, Encoder, Program, Refusal, answer};
use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(25));
const SUM_PROGRAM: u32 = 0x2000_1996;
const SUM_1: u32 = 1;
const SUM: u32 = 1;
const STOP: u32 = 2;

fn serve(manager: &Manager, service: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::new(manager, ServerConfig::default())?;
    server.serve(service, Access::SameUser)?;
    let stopped = Cell::new(false);
    let carry_out = |asked: &mut Asked<'_>, results: &mut Encoder| {
        match asked.procedure {
            SUM => {
                let numbers = asked.arguments.array(1024, |number| number.i32())?;
                let user = asked.peer.as_ref().and_then(|peer| peer.uid);
                results.i64(numbers.iter().map(|number| i64::from(*number)).sum());
                results.u32(user.unwrap_or(u32::MAX));
            }
            STOP => stopped.set(true),
            _ => return Err(Refusal::NoProcedure),
        }
        Ok(())
    };
    let programs = [Program { number: SUM_PROGRAM, version: SUM_1, carry_out: &carry_out }];
    while !stopped.get() {
        if let Err(e) = answer(server.receive(None)?, &programs, Some(Duration::from_secs(1))) {
            eprintln!("a caller has no reply: {e}");
        }
    }
    server.drain(LIMIT)?;
    Ok(())
}

fn sum(caller: &Caller, numbers: &[i32]) -> Result<(i64, u32), Box<dyn Error>> {
    let write = |arguments: &mut Encoder| {
        arguments.count(numbers.len());
        for number in numbers {
            arguments.i32(*number);
        }
    };
    let answered = caller.call(SUM, write, LIMIT)?;
    let mut results = answered.results();
    Ok((results.i64()?, results.u32()?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let manager = Manager::with_config(Config::from_env()?)?;
    match arguments[..] {
        ["serve", service] => serve(&manager, service),
        ["call", service, ref numbers @ ..] => {
            let caller = Caller::connect(&manager, service, (SUM_PROGRAM, SUM_1), LIMIT)?;
            if numbers == ["stop"] {
                caller.call(STOP, |_| {}, LIMIT)?;
            } else {
                let numbers = numbers.iter().map(|n| n.parse()).collect::<Result<Vec<_>, _>>()?;
                let (sum, user) = sum(&caller, &numbers)?;
                println!("{sum}, asked by user {user}");
            }
            Ok(())
        }
        [] => {
            let service = format!("sum-{}", std::process::id());
            std::thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let manager = Manager::with_config(Config::from_env().expect("settings"));
                    serve(&manager.expect("a node"), &service).expect("it serves");
                });
                let caller = Caller::connect(&manager, &service, (SUM_PROGRAM, SUM_1), LIMIT)?;
                println!("1 + 2 + 39 = {}", sum(&caller, &[1, 2, 39])?.0);
                caller.call(STOP, |_| {}, LIMIT)?;
                server.join().expect("it ends");
                Ok(())
            })
        }
        _ => Err("sum [serve SERVICE | call SERVICE NUMBER ..]".into()),
    }
}
