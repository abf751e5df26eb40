//! Several devices, and others who change files behind the server's back.
