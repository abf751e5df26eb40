//! Limits of principals: what exceeds a quota is refused, what exceeds a rate waits, and a change
//! of the access file counts for connections that are open.

use wire::{ErrorCode, Reply, Request, WireError};

use super::{Guarded, open};
use crate::tests::client::Client;
use crate::tests::rig::image;

/// The rules of a principal with these limits, and of one without any.
fn rules(limits: &str) -> String {
    format!(
        "[principal.ci]\npull = [\"*\"]\npush = [\"*\"]\n[principal.ci.limits]\n{limits}\n[principal.free]\npull = \
         [\"*\"]\npush = [\"*\"]\n"
    )
}

fn done(reply: Reply) {
    assert!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
}

fn no_space(reply: Reply) -> String {
    let Reply::Error { code: ErrorCode::NoSpace, text } = reply else { panic!("{reply:?}") };
    text
}

/// Why the server closed the connection.
fn busy(client: &mut Client) -> String {
    client.until(|_| false);
    match client.closed.take() {
        Some(WireError::Peer { code: ErrorCode::Busy, text }) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tags_and_bytes_beyond_a_quota_are_refused_and_it_can_be_raised() {
    let bytes = image(3);
    let server = Guarded::start(&rules(&format!("tags = 1\nstored_bytes = {}", bytes.len())));
    let (token, free) = (server.token("ci"), server.token("free"));
    let (mut ci, mut free) = (server.with(&token), server.with(&free));
    done(ci.upload("new:v1", &bytes).0);
    done(ci.upload("new:v1", &bytes).0);
    let text = no_space(ci.upload("new:v2", &bytes).0);
    assert!(text.starts_with("the quota `tags` of ci is 1, used are 1, and this needs 1 more;"), "{text}");
    let text = no_space(ci.upload("new:v1", &image(4)).0);
    let used = format!("the quota `stored_bytes` of ci is {0}, used are {0}, and this needs ", bytes.len());
    assert!(text.starts_with(&used), "{text}");
    // What somebody else published counts for him.
    done(free.upload("new:v3", &image(4)).0);
    done(ci.upload("new:v1", &image(4)).0);
    done(ci.upload("new:v3", &bytes).0);
    server.change(&rules("tags = 2"));
    server.rig.reloader.reload().unwrap();
    done(ci.upload("new:v2", &image(5)).0);
    no_space(ci.upload("new:v4", &bytes).0);
    let Guarded { rig, folder, .. } = server;
    rig.stop();
    let log = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    assert_eq!(log.matches("the quota `tags` of ci is").count(), 2, "{log}");
    assert_eq!(log.matches("the quota `stored_bytes` of ci is").count(), 1, "{log}");
}

#[test]
fn connections_and_open_images_are_counted_together_and_are_free_again() {
    let server = Guarded::start(&rules("connections = 2\nopen_images = 2"));
    let (token, free) = (server.token("ci"), server.token("free"));
    let [mut one, mut two, mut three] = [(); 3].map(|()| server.with(&token));
    done(one.ask(open("app")));
    done(one.ask(open("app")));
    done(two.ask(open("app")));
    let text = two.refused(open("other"), ErrorCode::Busy);
    assert!(text.starts_with("the quota `open_images` of ci is 2,"), "{text}");
    three.request(open("app"));
    let text = busy(&mut three);
    assert!(text.starts_with("the quota `connections` of ci is 2,"), "{text}");
    done(server.with(&free).ask(open("other")));
    drop(one);
    // The server sees the end of it some time later.
    let mut three = loop {
        let mut next = server.with(&token);
        let request = next.request(open("app"));
        next.until(|client| client.has_reply(request));
        if next.closed.is_none() {
            break next;
        }
    };
    server.change(&rules("connections = 1"));
    server.rig.reloader.reload().unwrap();
    done(two.ask(open("other")));
    done(three.ask(open("other")));
    let mut late = server.with(&token);
    late.request(open("app"));
    busy(&mut late);
    let Guarded { rig, folder, .. } = server;
    rig.stop();
    let log = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    let told = |action: &str, quota: &str| {
        let action = format!("\"action\":\"{action}\"");
        log.lines().any(|line| line.contains(&action) && line.contains(&format!("the quota `{quota}`")))
    };
    assert!(told("refused", "open_images") && told("closed", "connections"), "{log}");
}

#[test]
fn requests_beyond_a_rate_wait_and_nobody_else_does() {
    let server = Guarded::start(&rules("requests_per_second = 1"));
    let (token, free) = (server.token("ci"), server.token("free"));
    let (mut ci, mut free) = (server.with(&token), server.with(&free));
    done(ci.ask(open("app")));
    let asks: Vec<_> = (0..40).map(|_| ci.request(Request::List)).collect();
    ci.reply(asks[0]);
    let before = server.rig.metrics.requests.get();
    for _ in 0..40 {
        done(free.ask(Request::List));
    }
    let of_ci = server.rig.metrics.requests.get() - before - 40;
    assert!(of_ci < 39, "all were taken up at once");
    server.change(&rules("requests_per_second = 1000000"));
    asks[1..].iter().for_each(|ask| done(ci.reply(*ask)));
}

#[test]
fn bytes_beyond_a_rate_wait_and_nobody_else_does() {
    let server = Guarded::start(&rules("bytes_per_second = 16384"));
    let (token, free) = (server.token("ci"), server.token("free"));
    let (mut ci, mut free) = (server.with(&token), server.with(&free));
    let Reply::Opened { image: handle, .. } = ci.ask(open("other")) else { panic!("it is there") };
    let read = Request::MetaRead { image: handle, offset: 0, bytes: 4096 };
    let asks: Vec<_> = (0..60).map(|_| ci.request(read.clone())).collect();
    ci.reply(asks[0]);
    free.open("other");
    done(free.upload("new", &image(8)).0);
    assert!(!ci.has_reply(asks[59]), "all came at once");
    server.change(&rules(""));
    asks[1..].iter().for_each(|ask| done(ci.reply(*ask)));
    done(ci.upload("newer", &image(9)).0);
}

#[test]
fn an_upload_within_a_rate_arrives() {
    let server = Guarded::start(&rules("bytes_per_second = 65536"));
    let token = server.token("ci");
    let bytes = image(2);
    assert!(bytes.len() > 64 << 10, "more than comes at once: {}", bytes.len());
    done(server.with(&token).upload("new", &bytes).0);
}

#[test]
fn limits_of_anonymous_are_for_all_who_show_nothing() {
    let server =
        Guarded::start("[principal.anonymous]\npull = [\"*\"]\n[principal.anonymous.limits]\nconnections = 1\n");
    let (mut one, mut two) = (server.anonymous(), server.anonymous());
    done(one.ask(open("app")));
    two.request(open("app"));
    assert!(busy(&mut two).starts_with("the quota `connections` of anonymous is 1,"));
}
