#!/bin/bash
# Boots the arm64 container images in qemu, under Debian's arm64 kernel: Open vSwitch, OVN and the
# agent start as in their containers, the CNI plugin connects two pods, and a Service is reached
# from the host, from a pod and from outside.
#
#   lab/arm64.sh ARCHIVE      on this machine: `make test-arm64`
#   lab/arm64.sh inside       in qemu
set -euo pipefail
fail() { echo "arm64: $*" >&2; exit 1; }

if [ "$1" != inside ]; then
	root=$(mktemp -d -p /var/cache/hairpin arm64.XXXXXX)
	trap 'rm -rf "$root"' EXIT
	chmod 755 "$root"
	# The blobs of each image are its configuration, the layer with packages, which both share, and
	# its own layer. One root file system gets all.
	mapfile -t blobs < <(tar -xOf "$1" manifest.json | grep -o 'blobs/sha256/[0-9a-f]*')
	[ ${#blobs[@]} = 6 ] || fail "$1 does not have two images with two layers each"
	for layer in "${blobs[1]}" "${blobs[2]}" "${blobs[5]}"; do
		tar -xOf "$1" "$layer" | tar -x --numeric-owner -C "$root"
	done
	cp "$0" "$root/arm64.sh"
	# Without exec, so that the trap runs.
	lab/kernel.sh -t 1500 -a arm64 -r "$root" /arm64.sh inside
	exit
fi

say() { echo "$(cut -d' ' -f1 /proc/uptime) s: $*"; }
logs() { for log in /tmp/*.log; do echo "== $log"; tail -n 20 "$log"; done; }
trap '[ $? = 0 ] || logs' EXIT
# until_ok SECONDS COMMAND… waits until a command succeeds.
until_ok() {
	local end=$(($(date +%s) + $1))
	shift
	until "$@" >/tmp/last 2>&1; do
		[ "$(date +%s)" -lt "$end" ] || { cat /tmp/last; fail "not in time: $*"; }
		sleep 1
	done
}
# container NAME COMMAND… runs a command as a container runtime does, as the first process of a PID
# namespace.
container() {
	unshare --pid --fork --kill-child --mount --mount-proc "${@:2}" >"/tmp/$1.log" 2>&1 &
}

say "$(uname -m), $(. /etc/os-release && echo "$PRETTY_NAME"), $(hairpin version)"
[ "$(uname -m)" = aarch64 ]
# The machine's network: eth0, and an external client, which is also the default gateway.
hostname node-a
mkdir -p /run/netns /manifests /opt/cni/bin /etc/cni/net.d
ip netns add outside
ip link add eth0 type veth peer name eth0 netns outside
ip address add 172.18.0.3/16 dev eth0
ip -n outside address add 172.18.0.1/16 dev eth0
ip link set eth0 up
ip -n outside link set eth0 up
ip route add default via 172.18.0.1
cat >/manifests/cluster.yaml <<'YAML'
apiVersion: v1
kind: Node
metadata: {name: node-a, annotations: {k8s.ovn.org/node-id: "1"}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80]
  ipFamilies: [IPv4]
  ports: [{name: http, protocol: TCP, port: 80, targetPort: 8080, nodePort: 30080}]
YAML
container ovs /usr/local/lib/hairpin/ovs
container zone /usr/local/lib/hairpin/zone
hairpin node --manifests=/manifests --node=node-a >/tmp/agent.log 2>&1 &
hairpin install >/tmp/install.log 2>&1
until_ok 600 hairpin status --timeout=30s
say "the node is healthy: $(ovs-vsctl --version | sed -n 1p), $(ovn-controller --version | sed -n 1p)," \
	"datapath type $(ovs-vsctl get Bridge br-ex datapath_type)"

# Two pods: a server and a client.
pod() {
	ip netns add "$1"
	ip -n "$1" link set lo up
	printf '{"cniVersion":"1.1.0","name":"hairpin","type":"hairpin"}' |
		CNI_COMMAND=ADD CNI_CONTAINERID="$1" CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin CNI_NETNS="/run/netns/$1" \
			CNI_ARGS="K8S_POD_NAMESPACE=default;K8S_POD_NAME=$1;K8S_POD_INFRA_CONTAINER_ID=$1;K8S_POD_UID=$1" \
			/opt/cni/bin/hairpin >/tmp/cni
	ip -n "$1" -4 -o address show dev eth0 | awk '{ sub("/.*", "", $4); print $4 }'
}
server=$(pod server)
client=$(pod client)
say "pods: server $server, client $client"
mkdir /www && echo "hello from arm64" >/www/hello
(cd /www && exec ip netns exec server python3 -u -m http.server 8080 >>/tmp/server.log 2>&1) &
cat >/manifests/slice.yaml <<YAML
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [{addresses: [$server], nodeName: node-a, conditions: {ready: true}}]
YAML
# reached FROM ADDRESS PORT SOURCE sends a request from a network namespace (host: the machine's
# own), and checks the source address that the server saw.
reached() {
	local enter=(ip netns exec "$1")
	[ "$1" != host ] || enter=()
	: >/tmp/server.log
	# shellcheck disable=SC2016 # the variables of the inner shell
	until_ok 120 "${enter[@]}" timeout 10 bash -c 'exec 3<>/dev/tcp/$0/$1
		printf "GET /hello HTTP/1.0\r\n\r\n" >&3
		grep -q "hello from arm64" <&3' "$2" "$3"
	seen=$(awk '/GET .hello/ { source = $1 } END { print source }' /tmp/server.log)
	say "$1 → $2:$3: answered by the server, which saw $seen"
	[ "$seen" = "$4" ] || fail "it should have seen $4"
}
join=100.64.0.2 # of the gateway router, through which packets of the host and of external clients pass
reached host 10.96.0.80 80 $join
reached client 10.96.0.80 80 "$client"
reached outside 172.18.0.3 30080 $join
until_ok 120 hairpin diff # it fails if nft is slow, as here
say "$(cat /tmp/last)"
