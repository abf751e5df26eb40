//! Runs that needed no server, with the real one: it learns of them when there is a connection.

use std::time::{Duration, Instant};

use store::Memory;
use units::PageId;

use super::cached::{Device, end, pages, soft};
use super::pin::{pin_all, serve};
use super::real_server::{Rig, open_at, order, run};
use super::tree::Tree;
use super::{HANG, plain};
use crate::admin;
use crate::cached::Untold;
use connection::{Server, Trust};

fn server(device: &Device) -> Server {
    Server::parse(&format!("runnel://{}", device.address)).unwrap()
}

/// The runs that are kept for the server of the device.
fn kept(device: &Device) -> Vec<Vec<PageId>> {
    let untold = Untold::of(&server(device), &device.tree.metadata.id());
    untold.runs(&device.cache(), &device.tree.metadata).into_iter().map(|(_, pages)| pages).collect()
}

/// The pages that a program touches.
fn touched(device: &Device) -> Vec<PageId> {
    order().into_iter().map(|index| PageId::new(device.tree.big(), index)).collect()
}

/// Actions that the server knows, and pages in these.
fn learned(device: &Device) -> (u64, u64) {
    let status = admin::status(&server(device), &Trust::default(), HANG).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let image = status["images"].as_array().unwrap().first().unwrap_or(&serde_json::Value::Null);
    let number = |name: &str| image[name].as_u64().unwrap_or(0);
    (number("actions"), number("action_pages"))
}

/// A device that has all of the image and has run its program without the server, which is there
/// again and knows nothing.
fn ran_alone() -> Device {
    let mut device = Device::with(Tree::plain());
    pin_all(&device);
    device.rig = None;
    device.run(soft(pages()));
    assert_eq!(kept(&device), [touched(&device)]);
    device.rig = Some(serve(&device.tree, device.address));
    assert_eq!(learned(&device), (0, 0));
    device
}

#[test]
fn a_pin_tells_the_server_what_ran_without_it() {
    let device = ran_alone();
    pin_all(&device);
    assert_eq!(learned(&device), (1, order().len() as u64));
    assert!(kept(&device).is_empty(), "it is told once");
    // A device that has nothing is pushed what another one has run.
    let began = Instant::now();
    let mut token = 1 << 90;
    loop {
        assert!(began.elapsed() < HANG, "nothing was ever pushed");
        token += 1;
        let (session, sink) = device.rig.as_ref().unwrap().open(pages());
        run(&session, &sink, &device.tree, token);
        if session.counters().pushes.pages_pushed > 0 {
            break;
        }
    }
}

#[test]
fn a_session_tells_the_server_what_ran_without_it() {
    let mut device = ran_alone();
    let cache = device.cache();
    let (session, _sink) = open_at(device.address, plain(), Some(&cache)).unwrap();
    let began = Instant::now();
    while learned(&device) != (1, order().len() as u64) {
        assert!(began.elapsed() < HANG, "the server was never told");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(session.counters().pushes.pages_pushed, 0, "all of it is here");
    end(session, cache);
    assert!(kept(&device).is_empty());
    // The device knows the program now, and puts pages into the page cache for it unseen.
    device.run(pages());
    assert!(kept(&device).is_empty());
}

#[test]
fn what_a_server_was_told_or_has_no_image_of_is_not_told_again() {
    let mut device = Device::with(Tree::plain());
    device.run(pages());
    assert!(kept(&device).is_empty(), "the server saw it");

    let mut device = ran_alone();
    device.rig = None;
    let address = device.address;
    device.rig = Some(Rig::start_with(&Memory::new(), move |config| config.listen = address));
    device.run(pages());
    assert_eq!(kept(&device), [touched(&device)], "there may be another time");
}
