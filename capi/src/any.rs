//! Waiting for any of several end points.

use crate::boundary::{Failure, elements, get, guard, h_status, h_status::*, limit, out};
use crate::byte_stream::{h_byte_listener_t, h_byte_stream_t};
use crate::call::h_server_t;
use crate::datagram::h_datagram_receiver_t;
use crate::group::h_group_t;
use crate::node::h_node_t;
use crate::publish::h_subscriber_t;
use crate::stream::h_stream_receiver_t;
use crate::tagged::h_tagged_receiver_t;
use core::ffi::c_void;
use hamlyn::protocol::{EndPoint, ReceiveError};

/// An end point that may have something to receive, for h_wait_any.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_end_point_t {
    /// The end point's protocol: an h_kind.
    pub kind: u32,
    /// A pointer to the type that `kind` selects: h_datagram_receiver_t, h_tagged_receiver_t,
    /// h_stream_receiver_t, h_server_t, h_group_t, h_byte_stream_t, h_subscriber_t or
    /// h_byte_listener_t.
    pub end_point: *mut c_void,
}

/// Waits at most `timeout_ns` until one of several end points has something to receive: a receive
/// would return at once, unless another thread receives first. `index` gets the first such end
/// point. All end points must be of this node.
///
/// Errors: H_NOTHING, no end point has anything and the time limit was 0; H_TIMED_OUT; H_INVALID,
/// an unknown kind, or an end point of another node; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_wait_any(
    node: *mut h_node_t,
    end_points: *const h_end_point_t,
    count: usize,
    timeout_ns: i64,
    index: *mut usize,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(index, "index")?);
        let end_points = elements(end_points, count, "end_points")?;
        if count == 0 {
            return Err(Failure::invalid("count is 0, and must be at least 1"));
        }
        let mut probes: Vec<Box<dyn EndPoint + '_>> = Vec::with_capacity(count);
        for (i, end_point) in end_points.iter().enumerate() {
            let at = end_point.end_point;
            probes.push(match end_point.kind {
                1 => Box::new(get(at.cast::<h_datagram_receiver_t>(), "end_point")?.0.probe()),
                2 => Box::new(get(at.cast::<h_tagged_receiver_t>(), "end_point")?.0.probe()),
                3 => Box::new(get(at.cast::<h_stream_receiver_t>(), "end_point")?.0.probe()),
                4 => Box::new(get(at.cast::<h_server_t>(), "end_point")?.0.shared()?.clone()),
                5 => Box::new(get(at.cast::<h_group_t>(), "end_point")?.0.probe()),
                6 => Box::new(get(at.cast::<h_byte_stream_t>(), "end_point")?.0.shared()?.clone()),
                7 => Box::new(get(at.cast::<h_subscriber_t>(), "end_point")?.0.probe()),
                256 => {
                    Box::new(get(at.cast::<h_byte_listener_t>(), "end_point")?.0.shared()?.clone())
                }
                n => {
                    let text = format!("end point {i} is of kind {n}, and must be of an h_kind");
                    return Err(Failure::invalid(text));
                }
            });
        }
        let list: Vec<&dyn EndPoint> = probes.iter().map(|probe| &**probe).collect();
        match node.manager()?.wait_any(&list, limit(timeout_ns)) {
            Ok(index) => place.write(index),
            Err(ReceiveError::TimedOut) if timeout_ns == 0 => {
                return Err(Failure::new(H_NOTHING, "no end point has anything to receive"));
            }
            Err(e) => return Err(e.into()),
        };
        Ok(())
    })
}
