#!/bin/sh
# Installs what the lab needs on a Debian or Ubuntu machine, and only what is missing. The nodes
# have their own Open vSwitch, OVN and nft. The machine needs the tools that create and enter nodes,
# and nft, for tests with an older version. `setup.sh tests` also installs what only tests need: a
# headless browser (64 MB), a C compiler for the race detector, the programs of the package
# prometheus without its service, and FRR, without starting its service.
set -eu

if ! command -v go >/dev/null && [ ! -x /usr/local/go/bin/go ]; then
	echo "setup: Go 1.26 or newer is needed: https://go.dev/dl/" >&2
	exit 1
fi

missing=
# need COMMAND PACKAGE notes the package if the command is missing.
need() {
	PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing="$missing $2"
}
need debootstrap debootstrap
need ip iproute2
need ethtool ethtool
need nsenter util-linux
need nft nftables
if [ "${1:-}" = tests ]; then
	need gcc gcc
	[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"
	command -v chromium >/dev/null || need chromium-headless-shell chromium-headless-shell
	need promtool prometheus
	need prometheus prometheus
	[ -x /usr/lib/frr/bgpd ] || missing="$missing frr"
	[ -x /usr/lib/frr/frr-reload.py ] || missing="$missing frr-pythontools"
fi
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "setup: run as root, or install:$missing" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "setup: this machine has no apt-get; install these yourself:$missing" >&2
	exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
case $missing in
*frr*) [ ! -d /run/systemd/system ] || systemctl mask frr.service >/dev/null 2>&1 ;; # tests start it in namespaces only
esac
packages=$(echo "$missing" | sed 's/ prometheus//g')
# The package lists may be missing or out of date.
# shellcheck disable=SC2086 # a list of words
apt-get install -y --no-install-recommends $packages >/dev/null 2>&1 || {
	apt-get update >/dev/null
	apt-get install -y --no-install-recommends $packages >/dev/null
}
case $missing in
*prometheus*)
	dir=$(mktemp -d)
	(cd "$dir" && { apt-get download prometheus ||
		{ apt-get update && apt-get download prometheus; }; } >/dev/null 2>&1)
	dpkg-deb -x "$dir"/prometheus_*.deb "$dir"
	install -m 755 "$dir/usr/bin/promtool" "$dir/usr/bin/prometheus" /usr/local/bin
	rm -r "$dir"
	;;
esac
