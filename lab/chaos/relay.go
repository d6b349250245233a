package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// virtioHeader is the length of the header before each frame of a socket with PACKET_VNET_HDR. It
// says which segments and checksums of the frame the sender left to the network device.
const virtioHeader = 10

// relay passes frames from a node to the other machines of the underlay, each after a delay. The
// kernel of the lab has no netem.
type relay struct {
	from     *os.File
	to       map[cluster.MAC]*os.File // by the MAC of the machine
	delay    func() time.Duration
	inFlight sync.WaitGroup
}

// relaySocket returns a socket for the frames of a port of the underlay; with protocol 0 it
// receives nothing.
func relaySocket(at lab.Place, port string, protocol uint16) (*os.File, error) {
	f, err := attack.PacketSocket(at, port, protocol)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	})
	return f, errors.Join(controlErr, err)
}

// delayFrames returns an injection that passes each frame from a node after a delay. The bridge of
// the underlay does not get the frames: a rule at the port's ingress drops them, behind the socket.
func delayFrames(delay func(*rand.Rand) time.Duration) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (end undo, err error) {
		underlay := r.cluster.Lab().Underlay()
		p, err := r.underlayPorts(f.Node)
		if err != nil {
			return nil, err
		}
		random := rand.New(rand.NewPCG(uint64(f.Start), uint64(f.End)))
		l := &relay{to: map[cluster.MAC]*os.File{}, delay: func() time.Duration { return delay(random) }}
		defer func() {
			if err != nil {
				l.close()
			}
		}()
		if l.from, err = relaySocket(underlay, p[0], unix.ETH_P_ALL); err != nil {
			return nil, err
		}
		for _, h := range r.cluster.Lab().Hosts() {
			if h.Name() == f.Node || h.Name() == underlay.Name() {
				continue
			}
			mac, err := attack.MAC(h, "eth0")
			if err != nil {
				return nil, err
			}
			if l.to[mac], err = relaySocket(underlay, h.UnderlayPort(), 0); err != nil {
				return nil, err
			}
		}
		remove, err := r.addTable(ctx, "netdev",
			"chain ingress {\ntype filter hook ingress device "+p[0]+" priority 0\ndrop\n}\n")
		if err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		go func() { ended <- l.run() }()
		return func(ctx context.Context) error {
			err := remove(ctx)
			_ = l.from.Close()
			err = errors.Join(err, <-ended)
			l.inFlight.Wait()
			l.close()
			return err
		}, nil
	}
}

// run passes frames on until the socket is closed.
func (l *relay) run() error {
	for buffer := make([]byte, virtioHeader+1<<17); ; {
		n, err := l.from.Read(buffer)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("relay: %w", err)
		case n < virtioHeader+14:
			continue
		}
		frame := append([]byte{}, buffer[:n]...)
		l.inFlight.Add(1)
		time.AfterFunc(l.delay(), func() {
			defer l.inFlight.Done()
			l.send(frame)
		})
	}
}

// send sends a frame to the machine that has its destination, or to all. A frame that a full queue
// refuses is lost, as in any network.
func (l *relay) send(frame []byte) {
	if one := l.to[cluster.MAC(frame[virtioHeader:virtioHeader+6])]; one != nil {
		_, _ = one.Write(frame)
		return
	}
	for _, f := range l.to {
		_, _ = f.Write(frame)
	}
}

func (l *relay) close() {
	if l.from != nil {
		_ = l.from.Close()
	}
	for _, f := range l.to {
		if f != nil {
			_ = f.Close()
		}
	}
}
