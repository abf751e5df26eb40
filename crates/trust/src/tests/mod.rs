mod json;
mod patterns;
mod publisher;
mod roots;
mod size;
mod state;
mod time;
mod workflow;
