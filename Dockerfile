# The image holds the daemon, the libraries that it is linked to, certificate authorities, and nothing else: no shell.
# `make image` builds it, or runs these steps without a container engine (hack/image-steps.sh); for that, paths in the
# RUN steps are relative where the step writes.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# Backtraces keep their names; line numbers would triple the size.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo

# The dependencies are a layer of their own, built around empty sources: it is made anew when a manifest changes only.
COPY Cargo.toml Cargo.lock ./
COPY integration/Cargo.toml integration/
RUN mkdir -p src integration/src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs integration/src/lib.rs \
    && cargo build --release --locked --package towline

COPY src src
# COPY keeps the files' times, which are before those of the empty sources: cargo would see no change.
RUN touch src/main.rs src/lib.rs \
    && cargo build --release --locked --package towline

# Names are looked up by the C library itself: it needs no module and no nsswitch.conf besides.
RUN mkdir -p rootfs/usr/bin rootfs/etc/ssl/certs \
    && cp target/release/towline rootfs/usr/bin/ \
    && ldd target/release/towline | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory rootfs \
    && cp --dereference /etc/ssl/certs/ca-certificates.crt rootfs/etc/ssl/certs/ \
    && echo 'towline:x:65532:65532::/:/usr/bin/towline' > rootfs/etc/passwd \
    && echo 'towline:x:65532:' > rootfs/etc/group \
    && chmod -R u=rwX,go=rX rootfs

FROM scratch
COPY --from=build /src/rootfs/ /
ENV PATH=/usr/bin
# Where the system has huge pages for everybody, the allocator would take twice the memory of a small daemon.
ENV MIMALLOC_ALLOW_THP=0
# Freed memory goes back at once instead of after a second: 3 MiB less with 1,000 leases, and 40 with 5,000 clusters (docs/costs.md).
ENV MIMALLOC_PURGE_DELAY=0
# Goes over the file's: an address of loopback can't be reached from outside the container.
ENV TOWLINE__DAEMON__LISTEN=0.0.0.0:8384
USER 65532:65532
EXPOSE 8384
ENTRYPOINT ["/usr/bin/towline"]
CMD ["run", "--config", "/etc/towline/towline.toml"]
