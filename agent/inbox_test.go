package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestGathered: one change comes at once, and so do the first of a burst; of the others the newest come, moments apart, the last one among them.
func TestGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := make(chan int, 1)
		out := gathered(ctx, c)
		const burst = 1000 // in as many milliseconds
		var got []int
		begin := time.Now()
		for i := range burst {
			select {
			case <-c: // as a feed does
			default:
			}
			c <- i
			synctest.Wait()
			select {
			case v := <-out:
				if got = append(got, v); i-v > 1 { // the pace and this loop may wake in either order
					t.Errorf("after %d came %d", i, v)
				}
			default:
			}
			time.Sleep(time.Millisecond)
		}
		if most := firstFew + int(time.Since(begin)/moment); len(got) > most || len(got) < most-1 || got[firstFew-1] != firstFew-1 {
			t.Errorf("%d of %d came, of which the first few are %v", len(got), burst, got[:firstFew])
		}
		if got[len(got)-1] != burst-1 {
			if v := <-out; v != burst-1 {
				t.Errorf("the last is %d", v)
			}
		}
		time.Sleep(firstFew * moment)
		for i := range firstFew {
			begin = time.Now()
			c <- i
			if v := <-out; v != i || time.Since(begin) > 0 {
				t.Errorf("after a rest, %d comes as %d after %s", i, v, time.Since(begin))
			}
		}
	})
}
