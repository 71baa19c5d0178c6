# Logs the milestones of the recorded workload, driven by the same variables. A switch other than that at 0 comes half
# a second after its full second, so that no probe falls on it.
say() { echo "$@"; }
up() { echo ok > /tmp/www/healthz; : > /tmp/ok; say up; }
down() { rm -f /tmp/www/healthz /tmp/ok; say down; }
for signal in TERM USR1 USR2 QUIT INT; do
  case " $HANDLES " in
    *" $signal "*) trap "say got SIG$signal; sleep $STOP_IN; say bye; exit 0" $signal ;;
    *) trap "say ignored SIG$signal" $signal ;;
  esac
done
mkdir -p /tmp/www
say start
[ "$UP_AT" = 0 ] && up
: > /tmp/begun
[ -n "$PORT" ] && { httpd -f -p "$PORT" -h /tmp/www & }
sleep 0.5 & wait $!
second=0
while :; do
  [ "$second" != 0 ] && [ "$second" = "$UP_AT" ] && up
  [ "$second" = "$DOWN_AT" ] && down
  [ "$second" = "$UP_AGAIN_AT" ] && up
  [ "$second" = "$EXIT_AT" ] && { say exit $EXIT_CODE; exit $EXIT_CODE; }
  sleep 1 & wait $!
  second=$((second + 1))
done
