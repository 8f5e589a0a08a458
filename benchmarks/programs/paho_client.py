"""The least that anyone would write instead of the agent: `paho_client.py PORT CA USER PASSWORD`.

It is connected to the broker over TLS, and looks at memory and temperature once a second. It also
loads the modules of a small database, as every such program does in the end.
"""

import sqlite3  # noqa: F401 - see above
import sys
import time

import psutil
from paho.mqtt import client as mqtt  # noqa: TID251 - measured beside ours
from paho.mqtt.enums import CallbackAPIVersion  # noqa: TID251 - likewise

client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
client.username_pw_set(sys.argv[3], sys.argv[4])
client.tls_set(sys.argv[2])
client.connect_async("127.0.0.1", int(sys.argv[1]))
client.loop_start()
while True:
    psutil.virtual_memory()
    psutil.sensors_temperatures()
    time.sleep(1)
