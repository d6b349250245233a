#!/bin/bash
# Runs a command under Debian's own kernel, with the real module openvswitch: in qemu, with this
# machine's files, of which changes are discarded.
#
#   lab/kernel.sh [-t SECONDS] [-a ARCHITECTURE -r DIRECTORY] COMMAND [ARGUMENT…]
#
# With -a and -r, it is the kernel of another architecture, and the files are those of a directory,
# a root file system for that architecture. KERNEL=6.12 selects another of Debian's kernels: that of
# the package linux-image-6.12-ARCHITECTURE. The exit code is that of the command, or 124 after a
# timeout. Without KVM, everything takes some 15 times as long.
set -euo pipefail
native=$(dpkg --print-architecture)
limit=3000 arch=$native root=/
while getopts t:a:r: option; do
	case $option in t) limit=$OPTARG ;; a) arch=$OPTARG ;; r) root=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
if [ $# = 0 ]; then
	echo "usage: lab/kernel.sh [-t SECONDS] [-a ARCHITECTURE -r DIRECTORY] COMMAND [ARGUMENT…]" >&2
	exit 2
fi
cache=${HAIRPIN_KERNEL:-/var/cache/hairpin/kernel}${KERNEL:+-$KERNEL}
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive
case $arch in
amd64) qemu="qemu-system-x86_64 -M q35 -cpu max" package=qemu-system-x86 console=ttyS0 ;;
# The architecture's own pointer authentication is slow in an emulator.
arm64) qemu="qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on" package=qemu-system-arm console=ttyAMA0 ;;
*) echo "kernel: unknown architecture $arch" >&2; exit 2 ;;
esac

missing=
# need COMMAND PACKAGE notes the package if the command is missing.
need() { command -v "$1" >/dev/null || missing="$missing $2"; }
need "${qemu%% *}" $package
need cpio cpio
need depmod kmod
busybox=/bin/busybox
if [ "$arch" != "$native" ]; then
	cache=$cache-$arch busybox=$cache/usr/bin/busybox
	need xz xz-utils
else
	[ -x $busybox ] && $busybox --list | grep -qx insmod || missing="$missing busybox-static"
fi
if [ -n "$missing" ]; then
	echo "kernel: installing$missing"
	# shellcheck disable=SC2086 # a list of words
	{ apt-get update && apt-get install -y --no-install-recommends $missing; } >/dev/null 2>&1 ||
		{ echo "kernel: install these yourself:$missing" >&2; exit 1; }
fi

# The kernel is unpacked once.
if [ ! -e "$cache/ready" ]; then
	rm -rf "$cache.new" && mkdir -p "$cache.new/deb"
	more=
	if [ "$arch" != "$native" ]; then
		APT_CONFIG=$(bin/lab image --apt "$cache.new/apt" --arch "$arch")
		export APT_CONFIG
		more=busybox-static
	fi
	package=$(apt-cache depends "linux-image-${KERNEL:+$KERNEL-}$arch" |
		awk '/Depends: linux-image-/ { print $2; exit }')
	echo "kernel: fetching $package"
	(cd "$cache.new/deb" && apt-get -o APT::Sandbox::User=root download "$package" $more >/dev/null)
	unset APT_CONFIG
	for deb in "$cache.new"/deb/*.deb; do dpkg-deb -x "$deb" "$cache.new"; done
	[ -e "$cache.new/lib" ] || ln -s usr/lib "$cache.new/lib"
	depmod -b "$cache.new" "$(ls "$cache.new/lib/modules")"
	rm -rf "$cache.new/deb" "$cache.new/apt" "$cache" && touch "$cache.new/ready" && mv "$cache.new" "$cache"
fi
version=$(ls "$cache/lib/modules")
if [ "$root" != / ]; then # the command finds the modules there
	mkdir -p "$root$cache/usr" && cp -al "$cache/usr/lib" "$root$cache/usr" && ln -sfn usr/lib "$root$cache/lib"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"/{bin,proc,sys,dev,host,rw,new,modules} "$work/out"
cp "$busybox" "$work/root/bin/busybox"
files=
for m in virtio_pci 9pnet_virtio 9p overlay; do # what init needs before it has the machine's files
	for f in $(modprobe -d "$cache" -S "$version" --show-depends "$m" | awk '$1 == "insmod" { print $2 }'); do
		name=$(basename "${f%.xz}")
		[ ! -e "$work/root/modules/$name" ] || continue
		case $f in *.xz) xz -dc "$f" ;; *) cat "$f" ;; esac >"$work/root/modules/$name"
		files="$files $name"
	done
done
tree=: here=$PWD # a new /tmp hides the machine's
[ "$root" = / ] || here=/
case $here in /tmp/*) tree="\$b mkdir -p '/new$here'; \$b mount -o bind '/host$here' '/new$here'" ;; esac
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
cp "$busybox" "$work/out/busybox"
cat >"$work/out/inside" <<INSIDE
export PATH=$(printf %q "$PATH") HOME=$(printf %q "$HOME") LANG=C.UTF-8
for m in openvswitch vport-geneve veth tun bridge dummy vrf sctp nf_conntrack_netlink nf_tables nft_chain_nat \\
	nft_nat nft_masq nft_redir nft_ct nft_fib_inet nft_fib_ipv4 nft_fib_ipv6 nft_reject_inet nft_reject_ipv4 \\
	nft_reject_ipv6 nft_fwd_netdev nft_dup_ipv4 nft_dup_ipv6 nft_numgen nft_hash nft_limit sch_ingress cls_bpf \\
	8021q; do
	modprobe -d '$cache' "\$m" 2>/dev/null || echo "kernel: no module \$m"
done
ip link set lo up
cd $(printf %q "$here")
echo "kernel: \$(uname -r) is up after \$(cut -d' ' -f1 /proc/uptime) s"
$(printf '%q ' "$@")
echo \$? >/mnt/code
sync
/mnt/busybox poweroff -f
INSIDE

(cd "$work/root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
code=0
# shellcheck disable=SC2086 # a list of words
timeout --foreground "$limit" $qemu -accel tcg,thread=multi -smp "${HAIRPIN_CPUS:-2}" -m 4096 -nographic -no-reboot \
	-nodefaults -serial stdio -kernel "$cache/boot/vmlinuz-$version" -initrd "$work/initrd" \
	-append "console=$console panic=1 quiet rdinit=/init" \
	-fsdev local,id=machine,path="$root",security_model=none,readonly=on,multidevs=remap \
	-device virtio-9p-pci,fsdev=machine,mount_tag=machine \
	-fsdev local,id=out,path="$work/out",security_model=none \
	-device virtio-9p-pci,fsdev=out,mount_tag=out </dev/null || code=$?
if [ ! -e "$work/out/code" ]; then
	echo "kernel: the command did not end" >&2
	exit $((code ? code : 1))
fi
exit "$(cat "$work/out/code")"
