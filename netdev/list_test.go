package netdev_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/netdev"
)

// TestListIsWhole: links that are added and removed meanwhile do not hide others from the listing.
func TestListIsWhole(t *testing.T) {
	const others, listings = 100, 200
	pods := insidetest.NetNS(t)
	if err := inside.Do(pods, func() error {
		for i := range others {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("x%d", i)},
				PeerName: fmt.Sprintf("y%d", i)}); err != nil {
				return err
			}
		}
		stop, stopped := make(chan struct{}), make(chan error)
		go func() {
			stopped <- inside.Do(pods, func() error {
				for {
					select {
					case <-stop:
						return nil
					default:
					}
					pod := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: "eth0"}
					if err := errors.Join(netlink.LinkAdd(pod), netlink.LinkDel(pod)); err != nil {
						return err
					}
				}
			})
		}()
		interrupted := 0
		for range listings {
			if _, err := netlink.LinkList(); errors.Is(err, netlink.ErrDumpInterrupted) {
				interrupted++
			}
			list, err := netdev.List(netlink.LinkList)
			if err != nil || len(list) < 2*others {
				t.Errorf("%d links, error %v", len(list), err)
			}
		}
		close(stop)
		if err := <-stopped; err != nil {
			return err
		}
		t.Logf("%d of %d listings were interrupted without it", interrupted, listings)
		if interrupted == 0 {
			t.Error("no listing was interrupted")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
