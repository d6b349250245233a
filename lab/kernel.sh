#!/bin/bash
# Runs a command under Debian's own kernel, with the real openvswitch module: in qemu, on a copy-on-write view of this machine.
#
#   lab/kernel.sh [-t SECONDS] COMMAND [ARGUMENT…]
#
# The exit code is the command's; 124 when it took too long. There is no KVM in it: everything is some 15 times slower.
set -euo pipefail
cache=${HAIRPIN_KERNEL:-/var/cache/hairpin/kernel}
limit=3000
if [ "${1:-}" = -t ]; then limit=$2; shift 2; fi
[ $# -gt 0 ] || { echo "usage: lab/kernel.sh [-t SECONDS] COMMAND [ARGUMENT…]" >&2; exit 2; }
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive

missing=
need() { command -v "$1" >/dev/null || missing="$missing $2"; } # command package
need qemu-system-x86_64 qemu-system-x86
need cpio cpio
need depmod kmod
[ -x /bin/busybox ] && /bin/busybox --list | grep -qx insmod || missing="$missing busybox-static"
if [ -n "$missing" ]; then
	echo "kernel: installing$missing"
	# shellcheck disable=SC2086 # a list of words
	{ apt-get update && apt-get install -y --no-install-recommends $missing; } >/dev/null 2>&1 || { echo "kernel: install these yourself:$missing" >&2; exit 1; }
fi

# The kernel, unpacked once.
if [ ! -e "$cache/ready" ]; then
	package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
	echo "kernel: fetching $package"
	rm -rf "$cache.new" && mkdir -p "$cache.new/deb"
	(cd "$cache.new/deb" && apt-get -o APT::Sandbox::User=root download "$package" >/dev/null)
	dpkg-deb -x "$cache.new"/deb/*.deb "$cache.new"
	depmod -b "$cache.new" "$(ls "$cache.new/lib/modules")"
	rm -rf "$cache.new/deb" "$cache" && touch "$cache.new/ready" && mv "$cache.new" "$cache"
fi
version=$(ls "$cache/lib/modules")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"/{bin,proc,sys,dev,host,rw,new,modules} "$work/out"
cp /bin/busybox "$work/root/bin/"
files=
for m in virtio_pci 9pnet_virtio 9p overlay; do # what the init needs before it sees the machine's files
	for f in $(modprobe -d "$cache" -S "$version" --show-depends "$m" | awk '$1 == "insmod" { print $2 }'); do
		name=$(basename "$f")
		[ -e "$work/root/modules/$name" ] || { cp "$f" "$work/root/modules/"; files="$files $name"; }
	done
done
tree=: # what is below /tmp here is hidden there
case $PWD in /tmp/*) tree="\$b mkdir -p '/new$PWD'; \$b mount -o bind '/host$PWD' '/new$PWD'" ;; esac
cat >"$work/root/init" <<INIT
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t proc proc /proc; \$b mount -t sysfs sys /sys; \$b mount -t devtmpfs dev /dev
for m in $files; do \$b insmod /modules/\$m || \$b echo "kernel: no module \$m"; done
\$b mount -t tmpfs -o size=1500m rw /rw && \$b mkdir /rw/upper /rw/work
\$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose machine /host || \$b poweroff -f
\$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work over /new || \$b poweroff -f
for d in proc sys dev run tmp mnt; do \$b mkdir -p /new/\$d; done
\$b mount -t proc proc /new/proc; \$b mount -t sysfs sys /new/sys; \$b mount -t devtmpfs dev /new/dev
\$b mkdir -p /new/dev/pts /new/dev/shm; \$b mount -t devpts pts /new/dev/pts; \$b mount -t tmpfs shm /new/dev/shm
\$b mount -t tmpfs run /new/run; \$b mount -t tmpfs tmp /new/tmp
$tree
\$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /new/mnt
exec \$b switch_root /new /bin/bash /mnt/inside
INIT
chmod +x "$work/root/init"
cat >"$work/out/inside" <<INSIDE
export PATH=$(printf %q "$PATH") HOME=$(printf %q "$HOME") LANG=C.UTF-8
for m in openvswitch vport-geneve veth tun bridge dummy vrf sctp nf_conntrack_netlink nf_tables nft_chain_nat nft_nat nft_masq nft_redir nft_ct \\
	nft_fib_inet nft_fib_ipv4 nft_fib_ipv6 nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 nft_fwd_netdev nft_dup_ipv4 nft_dup_ipv6 nft_numgen nft_hash nft_limit; do
	modprobe -d '$cache' "\$m" 2>/dev/null || echo "kernel: no module \$m"
done
ip link set lo up
cd $(printf %q "$PWD")
echo "kernel: \$(uname -r) is up after \$(cut -d' ' -f1 /proc/uptime) s"
$(printf '%q ' "$@")
echo \$? >/mnt/code
sync
/bin/busybox poweroff -f
INSIDE

(cd "$work/root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
code=0
timeout --foreground "$limit" qemu-system-x86_64 -M q35 -cpu max -accel tcg,thread=multi -smp "${HAIRPIN_CPUS:-2}" -m 4096 -nographic -no-reboot -nodefaults -serial stdio \
	-kernel "$cache/boot/vmlinuz-$version" -initrd "$work/initrd" -append "console=ttyS0 panic=1 quiet rdinit=/init" \
	-fsdev local,id=machine,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=machine,mount_tag=machine \
	-fsdev local,id=out,path="$work/out",security_model=none -device virtio-9p-pci,fsdev=out,mount_tag=out </dev/null || code=$?
[ -e "$work/out/code" ] || { echo "kernel: the command did not end" >&2; exit $((code ? code : 1)); }
exit "$(cat "$work/out/code")"
