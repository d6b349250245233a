package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/lab"
)

// policyFlow sends datagrams from one pod to another all the time, and records which arrive.
type policyFlow struct {
	from, to *net.UDPConn
	paused   atomic.Bool

	mu    sync.Mutex
	begin time.Time // of the record
	first time.Time // when the first datagram arrived that was sent after begin
	last  time.Time // when the last datagram was sent that arrived
}

func startPolicyFlow(client, server *lab.Pod) (*policyFlow, error) {
	f := &policyFlow{begin: time.Now()}
	err := lab.Do(server, func() (err error) {
		f.to, err = net.ListenUDP("udp", &net.UDPAddr{Port: inside})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = lab.Do(client, func() (err error) {
		f.from, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.IPs()[0], inside)))
		return err
	})
	if err != nil {
		return nil, err
	}
	clock := time.Now() // a datagram has the time since then
	go func() {
		buf := make([]byte, 8)
		for {
			binary.BigEndian.PutUint64(buf, uint64(time.Since(clock)))
			if _, err := f.from.Write(buf); errors.Is(err, net.ErrClosed) {
				return
			}
			for time.Sleep(250 * time.Microsecond); f.paused.Load(); {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	go func() {
		buf := make([]byte, 8)
		for {
			if _, err := f.to.Read(buf); err != nil {
				return
			}
			now, sent := time.Now(), clock.Add(time.Duration(binary.BigEndian.Uint64(buf)))
			f.mu.Lock()
			if f.last = sent; f.first.IsZero() && sent.After(f.begin) {
				f.first = now
			}
			f.mu.Unlock()
		}
	}()
	return f, nil
}

func (f *policyFlow) stop() {
	_ = f.from.Close()
	_ = f.to.Close()
}

// reset begins a record, and returns when.
func (f *policyFlow) reset() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin, f.first = time.Now(), time.Time{}
	return f.begin
}

// until waits for the effect of a change: a datagram arrives, or none does any more. It returns the
// time since begin.
func (f *policyFlow) until(open bool, begin time.Time, limit time.Duration) (time.Duration, error) {
	const silence = 200 * time.Millisecond
	for time.Since(begin) < limit {
		f.mu.Lock()
		first, last := f.first, f.last
		f.mu.Unlock()
		if open && !first.IsZero() {
			return first.Sub(begin), nil
		}
		if !open && time.Since(last) > silence && time.Since(begin) > silence {
			return max(0, last.Sub(begin)), nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, fmt.Errorf("a change of policies has no effect within %v (open: %v)", limit, open)
}
