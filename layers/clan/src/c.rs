//! CLAN for C: `include/clan.h`, whose comments are the contract.
//!
//! Never: a call that fails writes a result.

// A body that does nothing but call is one line.
#![allow(missing_docs, clippy::unit_arg)]

use crate::face::{Given, In, Kept, Many, New, Out, limit, misuse, number_of, put, put_some, text};
use crate::{
    Aperture, Clan, Completion, Config, Done, Endpoint, Error, Event, EventId, EventQueue, Export,
    Figures, HANDLE_BYTES, OOB_BYTES, Region, Request, RequestQueue, Rights, Signal, Target, Trip,
    Wire, calls,
};
use hamlyn::Access;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

macro_rules! structures {
    ($($name:ident { $($field:ident: $type:ty),* })*) => {$(
        #[repr(C)]
        pub struct $name { $($field: $type),* }
    )*};
}

fn rights(number: c_int) -> Result<Rights, Error> {
    match number {
        1 => Ok(Rights::Read),
        2 => Ok(Rights::Write),
        3 => Ok(Rights::ReadWrite),
        _ => misuse(format!("rights {number}: CLAN_READ, CLAN_WRITE, or both")),
    }
}

fn event_id(word: u64) -> Result<EventId, Error> {
    let none = || misuse(format!("{word:#x} is not an event of clan_events_register"));
    EventId::from_word(word).map_or_else(none, Ok)
}

fn target(events: In<Events>, event: u64) -> Result<Option<Target>, Error> {
    let of = |at: &Events| Ok(Target { queue: at.queue.clone(), event: event_id(event)? });
    events.map(of).transpose()
}

structures! {
    Events { clan: Clan, queue: EventQueue }
    CSettings { values: [u32; 4] }
    CPeer { uid: i64, gid: i64, pid: i64, is_proved: c_int, is_elsewhere: c_int }
    CEvent { event: u64, user: u64 }
    CRequest {
        operation: c_int, region: *const Region, region_offset: u64, aperture: *const Aperture,
        aperture_offset: u64, length: u64
    }
    CDone { group: u64, result: c_int }
}

fn request(asked: &CRequest) -> Result<Request<'_>, Error> {
    let CRequest { region_offset: here, aperture_offset: there, length, .. } = *asked;
    // SAFETY: as `In`.
    let (region, aperture) = unsafe { (asked.region.as_ref(), asked.aperture.as_ref()) };
    let (region, aperture) = (region.get()?, aperture.get()?);
    match asked.operation {
        1 => Ok(Request::Put { from: region, offset: here, to: aperture, at: there, length }),
        2 => Ok(Request::Get { from: aperture, offset: there, to: region, at: here, length }),
        other => misuse(format!("operation {other}: CLAN_PUT or CLAN_GET")),
    }
}

fn done(Done { group, result }: Done) -> CDone {
    CDone { group, result: result.map_or_else(|error| number_of(&error), |()| 0) }
}

fn event_of(Event { id, user }: Event) -> CEvent {
    CEvent { event: id.to_word(), user }
}

#[unsafe(no_mangle)]
pub extern "C" fn clan_error_text() -> *const c_char {
    text()
}

calls! { (): // An object is closed by being dropped.
    fn clan_close(clan: Option<Box<Clan>>) { Ok(drop(clan)) }
    fn clan_endpoint_close(endpoint: Option<Box<Endpoint>>) { Ok(drop(endpoint)) }
    fn clan_region_close(region: Option<Box<Region>>) { Ok(drop(region)) }
    fn clan_wire_close(wire: Option<Box<Wire>>) { Ok(drop(wire)) }
    fn clan_aperture_close(aperture: Option<Box<Aperture>>) { Ok(drop(aperture)) }
    fn clan_events_close(events: Option<Box<Events>>) { Ok(drop(events)) }
    fn clan_requests_close(requests: Option<Box<RequestQueue>>) { Ok(drop(requests)) }
}

calls! { u64:
    fn clan_oob_lost(at: In<Endpoint>) { Ok(at.get()?.oob_lost()) }
    fn clan_region_bytes(region: In<Region>) { Ok(region.get()?.bytes()) }
    fn clan_region_fired(region: In<Region>, word: usize) { Ok(region.get()?.fired(word)) }
    fn clan_aperture_bytes(aperture: In<Aperture>) { Ok(aperture.get()?.bytes()) }
}

calls! { *mut c_void:
    fn clan_region_address(region: In<Region>) {
        region.get()?.address().map_or_else(|| misuse("a mapped region has no address here"), Ok)
    }
}

calls! { c_int:
    fn clan_open(settings: In<CSettings>, to: New<Clan>) {
        let (to, mut config) = (to.get()?, Config::from_env()?);
        let Config { backlog, endpoints_of_peer_max, peers_max, oob_max, .. } = &mut config;
        let all = [backlog, endpoints_of_peer_max, peers_max, oob_max].into_iter();
        for (setting, given) in all.zip(settings.map_or([0; 4], |settings| settings.values)) {
            *setting = if given == 0 { *setting } else { given };
        }
        put(to, Box::new(Clan::new(config)?))
    }
    fn clan_listen(clan: In<Clan>, name: Many<c_char>, access: c_int) {
        clan.get()?.listen(name.text()?, match access {
            1 => Access::SameUser,
            2 => Access::Anyone,
            _ => return misuse(format!("access {access}: CLAN_SAME_USER or CLAN_ANYBODY")),
        })
    }
    fn clan_accept(clan: In<Clan>, ms: c_int, to: New<Endpoint>) {
        put(to.get()?, Box::new(clan.get()?.accept(limit(ms))?))
    }
    fn clan_set_accept_event(clan: In<Clan>, events: In<Events>, event: u64) {
        Ok(clan.get()?.set_accept_event(target(events, event)?))
    }
    fn clan_connect(clan: In<Clan>, name: Many<c_char>, ms: c_int, to: New<Endpoint>) {
        put(to.get()?, Box::new(clan.get()?.connect(name.text()?, limit(ms))?))
    }
    fn clan_start_progress(clan: In<Clan>) { clan.get()?.start_progress() }
    fn clan_descriptor(clan: In<Clan>) { Ok(clan.get()?.descriptor()?.as_raw_fd()) }
    fn clan_figures(clan: In<Clan>, to: Out<Figures>) { put(to.get()?, clan.get()?.figures()) }

    fn clan_endpoint_open(of: In<Endpoint>, ms: c_int, to: New<Endpoint>) {
        put(to.get()?, Box::new(of.get()?.open(limit(ms))?))
    }
    fn clan_endpoint_check(endpoint: In<Endpoint>) { endpoint.get()?.check() }
    fn clan_endpoint_set_event(endpoint: In<Endpoint>, events: In<Events>, event: u64) {
        Ok(endpoint.get()?.set_event(target(events, event)?))
    }
    fn clan_endpoint_peer(endpoint: In<Endpoint>, to: Out<CPeer>) {
        let (to, of) = (to.get()?, endpoint.get()?.peer()?);
        let [uid, gid, pid] = [of.uid, of.gid, of.pid].map(|known| known.map_or(-1, i64::from));
        let (is_proved, is_elsewhere) = (of.is_proved.into(), of.host.is_some().into());
        put(to, CPeer { uid, gid, pid, is_proved, is_elsewhere })
    }
    fn clan_send_oob(to: In<Endpoint>, bytes: Many<u8>, length: usize, ms: c_int) {
        to.get()?.send_oob(bytes.of(length)?, limit(ms))
    }
    fn clan_take_oob(at: In<Endpoint>, to: Out<[u8; OOB_BYTES]>) { put_some(to.get()?, at.get()?.take_oob()?) }
    fn clan_receive_oob(at: In<Endpoint>, to: Out<[u8; OOB_BYTES]>, ms: c_int) {
        put(to.get()?, at.get()?.receive_oob(limit(ms))?)
    }

    fn clan_region_create(clan: In<Clan>, bytes: u64, wires: u32, to: New<Region>) {
        put(to.get()?, Box::new(clan.get()?.region(bytes, wires)?))
    }
    fn clan_region_map(at: In<Endpoint>, bytes: u64, allowed: c_int, wires: u32, to: New<Region>) {
        put(to.get()?, Box::new(at.get()?.mapped_region(bytes, rights(allowed)?, wires)?))
    }
    fn clan_region_read(region: In<Region>, offset: u64, to: Many<u8>, length: usize) {
        region.get()?.read(offset, to.room(length)?)
    }
    fn clan_region_write(region: In<Region>, offset: u64, from: Many<u8>, length: usize) {
        region.get()?.write(offset, from.of(length)?)
    }
    fn clan_region_load(at: In<Region>, offset: u64, to: Out<u64>) { put(to.get()?, at.get()?.load(offset)?) }
    fn clan_export(at: In<Region>, peer: In<Endpoint>, allowed: c_int, signals: u32, to: Out<Export>) {
        put(to.get()?, at.get()?.export_signalled(peer.get()?, rights(allowed)?, signals)?)
    }
    fn clan_revoke(at: In<Region>, export: In<Export>) { Ok(at.get()?.revoke(export.get()?)) }
    fn clan_take_signal(at: In<Region>, to: Out<Signal>) { put_some(to.get()?, at.get()?.take_signal()) }
    fn clan_set_signal_event(region: In<Region>, events: In<Events>, event: u64) {
        Ok(region.get()?.set_signal_event(target(events, event)?))
    }

    fn clan_wire_create(
        at: In<Region>, offset: u64, length: u64, on: c_int, events: In<Events>, event: u64, to: New<Wire>
    ) {
        let trip = match rights(on)? {
            Rights::Read => Trip::Read,
            Rights::Write => Trip::Write,
            Rights::ReadWrite => return misuse("a wire is on CLAN_READ, or on CLAN_WRITE"),
        };
        let range = offset..offset.saturating_add(length);
        put(to.get()?, Box::new(at.get()?.wire(range, trip, target(events, event)?)?))
    }
    fn clan_wire_enable(wire: In<Wire>) { Ok(wire.get()?.enable()) }
    fn clan_wire_disable(wire: In<Wire>) { Ok(wire.get()?.disable()) }
    fn clan_wire_arm(wire: In<Wire>) { Ok(wire.get()?.arm()) }
    fn clan_wire_has_fired(wire: In<Wire>) { Ok(wire.get()?.has_fired()) }
    fn clan_wire_number(wire: In<Wire>) {
        let (word, bit) = wire.get()?.place();
        Ok(word as c_int * 64 + bit as c_int)
    }

    fn clan_import(from: In<Endpoint>, handle: In<[u8; HANDLE_BYTES]>, ms: c_int, to: New<Aperture>) {
        put(to.get()?, Box::new(from.get()?.import(handle.get()?, limit(ms))?))
    }
    fn clan_aperture_rights(aperture: In<Aperture>) {
        let rights = aperture.get()?.rights();
        Ok(c_int::from(rights.reads()) + 2 * c_int::from(rights.writes()))
    }
    fn clan_aperture_is_mapped(aperture: In<Aperture>) { Ok(aperture.get()?.is_mapped()) }
    fn clan_put(to: In<Aperture>, offset: u64, from: Many<u8>, length: usize, ms: c_int) {
        to.get()?.put(offset, from.of(length)?, limit(ms))
    }
    fn clan_put_signal(to: In<Aperture>, offset: u64, from: Many<u8>, length: usize, word: u32, ms: c_int) {
        to.get()?.put_signal(offset, from.of(length)?, word, limit(ms))
    }
    fn clan_get(from: In<Aperture>, offset: u64, to: Many<u8>, length: usize, ms: c_int) {
        from.get()?.get(offset, to.room(length)?, limit(ms))
    }
    fn clan_store(to: In<Aperture>, offset: u64, from: Many<u8>, length: usize) {
        to.get()?.store(offset, from.of(length)?)
    }
    fn clan_load(from: In<Aperture>, offset: u64, to: Many<u8>, length: usize) {
        from.get()?.load(offset, to.room(length)?)
    }

    fn clan_events_create(
        clan: In<Clan>, events_max: u32, call_back: Option<unsafe extern "C" fn(*mut c_void)>,
        argument: *mut c_void, to: New<Events>
    ) {
        let (to, clan, argument) = (to.get()?, clan.get()?.clone(), Kept(argument));
        let Some(call) = call_back else {
            return put(to, Box::new(Events { queue: clan.event_queue(events_max)?, clan }));
        };
        let queue = clan.event_queue_with(events_max, move || {
            let argument: &Kept<c_void> = &argument;
            // SAFETY: the program's function, by the header.
            unsafe { call(argument.0) }
        })?;
        queue.sleep_often();
        put(to, Box::new(Events { queue, clan }))
    }
    fn clan_events_register(at: In<Events>, user: u64, to: Out<u64>) {
        put(to.get()?, at.get()?.queue.register(user)?.to_word())
    }
    fn clan_events_unregister(at: In<Events>, event: u64) { Ok(at.get()?.queue.unregister(event_id(event)?)) }
    fn clan_raise(at: In<Events>, event: u64) { Ok(at.get()?.queue.raise(event_id(event)?)) }
    fn clan_events_take(at: In<Events>, to: Out<CEvent>) {
        put_some(to.get()?, at.get()?.queue.take().map(event_of))
    }
    fn clan_events_wait(at: In<Events>, ms: c_int, to: Out<CEvent>) {
        let (to, Events { clan, queue }) = (to.get()?, at.get()?);
        put(to, event_of(clan.wait(queue, limit(ms))?))
    }
    fn clan_events_poll(at: In<Events>, to: Out<CEvent>) {
        let (to, Events { clan, queue }) = (to.get()?, at.get()?);
        put_some(to, clan.poll(queue)?.map(event_of))
    }
    fn clan_events_prepare_to_wait(at: In<Events>) {
        let Events { clan, queue } = at.get()?;
        clan.prepare_to_wait(queue)
    }

    fn clan_requests_create(clan: In<Clan>, groups: u32, priority: u8, at_once: u32, to: New<RequestQueue>) {
        put(to.get()?, Box::new(clan.get()?.request_queue(groups, priority, at_once)?))
    }
    fn clan_requests_submit(
        at: In<RequestQueue>, requests: Many<CRequest>, count: usize, events: In<Events>, event: u64,
        word: *mut u64, to: Out<u64>
    ) {
        let completion = match (target(events, event)?, word.is_null(), word.is_aligned()) {
            (Some(target), true, _) => Completion::Event(target),
            (None, true, _) => Completion::None,
            (None, false, true) => Completion::WordOfC(Kept(word)),
            _ => return misuse("a group completes by an event, or by an aligned word"),
        };
        let requests: Result<Vec<_>, _> = requests.of(count)?.iter().map(request).collect();
        put(to.get()?, at.get()?.submit(&requests?, completion)?)
    }
    fn clan_requests_take_done(at: In<RequestQueue>, to: Out<CDone>) {
        put_some(to.get()?, at.get()?.take_done().map(done))
    }
    fn clan_requests_wait(at: In<RequestQueue>, ms: c_int, to: Out<CDone>) {
        put(to.get()?, done(at.get()?.wait(limit(ms))?))
    }
}
