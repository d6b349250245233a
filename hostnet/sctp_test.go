package hostnet

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/cluster"
)

// TestSCTPListeners finds SCTP sockets that listen, of both styles. Where the kernel has no SCTP,
// the machine of lab/kernel.sh has:
//
//	CGO_ENABLED=0 go test -c -o bin/hostnet.test ./hostnet
//	lab/kernel.sh -t 600 bin/hostnet.test -test.run TestSCTPListeners -test.v
func TestSCTPListeners(t *testing.T) {
	err := inside.Do(insidetest.NetNS(t), func() error { return findsSCTP(t) })
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("the kernel has no SCTP")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func findsSCTP(t *testing.T) error {
	var want []cluster.HostPort
	for _, x := range []struct {
		at      string
		style   int
		listens bool
		all     bool // of both families
	}{
		{"0.0.0.0:80", unix.SOCK_STREAM, true, false},
		{"127.0.0.1:81", unix.SOCK_STREAM, true, false},
		{"127.0.0.1:82", unix.SOCK_SEQPACKET, true, false},
		{"127.0.0.1:83", unix.SOCK_SEQPACKET, false, false},
		{"[::1]:84", unix.SOCK_STREAM, true, false},
		{"[::]:85", unix.SOCK_SEQPACKET, true, true},
		{"[::ffff:127.0.0.1]:86", unix.SOCK_STREAM, true, false},
	} {
		at := netip.MustParseAddrPort(x.at)
		port := int(at.Port())
		family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: at.Addr().As16()})
		if at.Addr().Is4() {
			family, address = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: at.Addr().As4()}
		}
		fd, err := unix.Socket(family, x.style|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, address); err != nil {
			return err
		}
		if !x.listens {
			continue
		}
		if err := unix.Listen(fd, 1); err != nil {
			return err
		}
		p := cluster.HostPort{Address: at.Addr().Unmap(),
			LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.SCTP, Port: at.Port()}}
		if x.all {
			p.Address = netip.Addr{}
		}
		want = append(want, p)
	}
	found, err := sctpListeners()
	slices.SortFunc(found, cluster.HostPort.Compare)
	slices.SortFunc(want, cluster.HostPort.Compare)
	if !slices.Equal(found, want) {
		t.Errorf("found %v\nnot   %v", found, want)
	}
	return err
}
