package kernel_test

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/kernel"
)

// TestRoutes checks List for routes by one link, also with several next hops, and its limit.
func TestRoutes(t *testing.T) {
	ns := insidetest.NetNS(t)
	if err := inside.Do(ns, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		index := map[string]int{}
		for _, name := range []string{"one", "two"} {
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
			for _, n := range []string{name, name + "-peer"} {
				x, err := netlink.LinkByName(n)
				if err == nil {
					err = netlink.LinkSetUp(x)
				}
				if err != nil {
					return err
				}
			}
			index[name] = l.Index
		}
		add := func(r netlink.Route, to string) error {
			_, r.Dst, _ = net.ParseCIDR(to)
			return netlink.RouteAdd(&r)
		}
		for i := range 2000 {
			if err := add(netlink.Route{LinkIndex: index["one"]},
				fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)); err != nil {
				return err
			}
		}
		err := add(netlink.Route{LinkIndex: index["two"], Table: 77}, "2001:db8::/32")
		if err == nil {
			err = add(netlink.Route{MultiPath: []*netlink.NexthopInfo{{LinkIndex: index["one"]},
				{LinkIndex: index["two"]}}}, "11.0.0.0/24")
		}
		if err != nil {
			return err
		}
		for _, c := range []struct {
			q    kernel.Routes
			want int
		}{
			{kernel.Routes{Link: index["one"], Table: 254}, 2001},
			{kernel.Routes{Link: index["one"], Table: 254, Max: 7}, 7},
			{kernel.Routes{Link: index["two"], Table: 254}, 1}, {kernel.Routes{Link: index["two"], Table: 77}, 1},
			{kernel.Routes{Link: index["two"], Table: 78}, 0},
			{kernel.Routes{Link: index["one"],
				Keep: func(r *netlink.Route) bool { return r.Dst != nil && r.Dst.String() == "10.1.2.0/24" }}, 1},
		} {
			for range 3 {
				c.q.Keep = keepIPv6Own(c.q.Keep)
				list, err := c.q.List()
				if err != nil || len(list) != c.want {
					t.Errorf("%+v: %d routes, want %d: %v", c.q, len(list), c.want, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// keepIPv6Own filters out the routes that the kernel makes for every link.
func keepIPv6Own(keep func(*netlink.Route) bool) func(*netlink.Route) bool {
	return func(r *netlink.Route) bool {
		return (r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast()) && (keep == nil || keep(r))
	}
}
