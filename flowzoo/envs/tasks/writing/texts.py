"""Generated sources for the writing task: posts to be summarized, abstracts to be expanded.

A source is a frame with its gaps filled; the same fillings complete two model texts by the two
writers. Fillings are drawn by key, and a frame with its fillings is one instance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from flowzoo.reward.text.writing import Form


class TextTemplate(NamedTuple):
    """Texts with the same gaps: a source and what two good writers make of it."""

    gaps: Mapping[str, tuple[str, ...]]  # gap -> its possible fillings
    source: str
    first: str  # `tldr`: a concise summary. `expansion`: the background.
    second: str  # `tldr`: a detailed summary. `expansion`: the method.


def gaps(**choices: str) -> Mapping[str, tuple[str, ...]]:
    """Gaps from lists separated by slashes."""
    return {name: tuple(listing.split("/")) for name, listing in choices.items()}


LOST = TextTemplate(
    gaps(
        day="Monday/Tuesday/Friday/Saturday/Sunday",
        kin="daughter/nephew/grandmother/cousin/brother",
        place="zoo/aquarium/castle/stadium/market/museum",
        spot="fountain/staircase/ticket desk/souvenir shop/playground",
        item="camera/wallet/bracelet/notebook/scarf/flute",
        giver="aunt/teacher/best friend/late uncle/godfather",
        wait="three days/a week/ten days/a month",
        finder="gardener/cleaner/schoolboy/security guard/painter",
        reward="a postcard/a cup of tea/a bar of chocolate/a handshake",
    ),
    "Last {day} I took my {kin} to the {place}, and somewhere between the entrance and the {spot} "
    "I lost my {item}. It was a present from my {giver}, so I panicked at once. We walked the "
    "same way back twice and asked everybody who worked there. Nobody had seen anything. The "
    "office told me to fill in a form and to wait. When they finally called me after {wait}, a "
    "{finder} had discovered it under a bench near the {spot}. I wanted to pay for the trouble, "
    "but the {finder} would only accept {reward}. Now I keep the {item} on a string around my "
    "neck whenever we go out, and my {kin} laughs at me.",
    "I lost my {giver}'s present, the {item}, at the {place}, and nobody could help, but {wait} "
    "later the office called: a {finder} had it and wanted only {reward}.",
    "While visiting the {place} with my {kin}, I lost the {item} that my {giver} gave me as a "
    "present. We searched the way to the {spot} twice; however, nobody there could help, and the "
    "office only had a form. Then, after {wait}, came good news: a {finder} discovered it under a "
    "bench, and asked for nothing except {reward}.",
)
NOISE = TextTemplate(
    gaps(
        floor="above/below/across the hall/next door",
        sound="drumming/hammering/vacuuming/singing/trumpet practice",
        hour="five in the morning/midnight/two at night/six on Sundays",
        work="nurse/baker/pilot/bus driver/translator",
        food="soup/lasagne/dumplings/apple pie/curry",
        cause="a broken clock/a new job/an exam/a deaf dog/sleepless twins",
        offer="carpets/thick curtains/a practice room/headphones/a schedule on the door",
        time="two weeks/a month/half a year",
    ),
    "The family {floor} has been driving me mad with their {sound} since spring. It starts at "
    "{hour} and I work shifts as a {work}, so every hour of sleep counts. I wrote three polite "
    "notes and got no reply. My landlord shrugged and said that walls are thin everywhere. "
    "Yesterday I lost patience and rang their bell, ready to shout. An old man opened, apologised "
    "before I could say a word, and put a bowl of {food} into my hands. The reason for the "
    "{sound}, he explained, was {cause}. He had never received my notes because the letter box is "
    "jammed. They will get {offer} now. It has been quiet for {time}, and I feel rather silly "
    "about my anger.",
    "Notes did not stop the {sound} at {hour} by the family {floor}, but ringing the bell did: an "
    "old man apologised for {cause}, and for {time} I have slept well.",
    "As a {work} on shifts I need sleep, but {sound} from the family {floor} began at {hour}. "
    "Notes brought no reply, and the landlord did not care. When I finally rang, an old man gave "
    "me {food} and apologised: {cause} was the reason, and my notes never arrived since the "
    "letter box is jammed. Afterwards they promised {offer}, so now I sleep and regret my anger.",
)
GARDEN = TextTemplate(
    gaps(
        crop="tomatoes/pumpkins/strawberries/beans/potatoes/peppers",
        where="balcony/allotment/roof terrace/back yard/school garden",
        pest="snails/pigeons/aphids/mice/rabbits",
        poison="copper tape/a plastic owl/soap water/chilli powder/a motion lamp",
        helper="hedgehog/neighbour's cat/family of toads/retired farmer/flock of sparrows",
        cost="forty euros/ninety dollars/sixty pounds/half my bonus",
        yield_="two buckets/eleven kilos/a single handful/four crates",
        plan="leave a wild corner/build a small pond/sow flowers in between/stop buying sprays",
    ),
    "This year I decided to grow {crop} on my {where} for the first time. Everything went well "
    "until June, when {pest} arrived and ate nearly every leaf overnight. I tried {poison}, which "
    "looked convincing in the video and did nothing at all. By July I had spent {cost} and was "
    "ready to give up. Then a {helper} moved in without being invited. Within days the {pest} "
    "became rare, and the plants grew new leaves. In September I harvested {yield_}, much more "
    "than the seed packet promised. My lesson is that patience beats gadgets. Next season I will "
    "{plan} and spend the money on better soil.",
    "When {pest} ate the {crop} on my {where} in June, {poison} was no help, but thanks to a "
    "{helper} the plants grew again and in September I still harvested {yield_}.",
    "I grew {crop} on my {where} for the first time, but in June {pest} ate the leaves. Although "
    "I spent {cost}, for example on {poison}, nothing helped. Then, uninvited, a {helper} moved "
    "in, {pest} became rare within days, and the plants recovered. As a result I harvested "
    "{yield_} in September. Next season I want to {plan}, because patience was worth more than "
    "gadgets.",
)
TRIP = TextTemplate(
    gaps(
        goal="wedding/job interview/chess final/funeral/concert",
        city="Lisbon/Oslo/Vienna/Glasgow/Naples/Prague",
        vehicle="night train/ferry/coach/small plane",
        trouble="a landslide/a strike/thick fog/a power cut/a lost engine part",
        stranger="dentist/fisherman/priest/florist/young couple",
        ride="pick-up truck/wedding limousine/camper van/tractor/delivery van",
        cargo="oysters/mattresses/beehives/old pianos/paper flowers",
        delay="nine/eleven/six/fourteen",
        gift="a jar of honey/a hand-drawn map/a woollen hat/a song",
    ),
    "I had to be in {city} for a {goal} and booked the {vehicle} because it was cheap. Halfway "
    "there we stopped in the middle of nowhere: {trouble}, said the announcement, and nothing "
    "would move until the next day. People started to argue with the staff. A {stranger} who sat "
    "opposite me made a phone call instead, and half an hour later we climbed into a {ride} full "
    "of {cargo}. We drove through the night, told stories and shared my sandwiches. I reached "
    "{city} {delay} hours late, dirty and happy, just as the {goal} began. The {stranger} refused "
    "any money and gave me {gift} as a farewell. The company, by the way, still has not answered "
    "my complaint.",
    "My {vehicle} to {city} stopped halfway because of {trouble}, but a {stranger} found us a "
    "{ride} with {cargo}, and we reached the {goal} late, though in time for the start.",
    "On the way to a {goal} in {city} my cheap {vehicle} stopped because of {trouble}. While "
    "others argued with the staff, a {stranger} made a call, and soon we sat in a {ride} among "
    "{cargo}, telling stories through the night. In the end I was {delay} hours late; still, the "
    "{goal} had only just begun. For the farewell I even received {gift}, whereas the company "
    "never answered.",
)
COOKING = TextTemplate(
    gaps(
        guest="boss/future in-laws/old professor/landlady/football team",
        dish="risotto/paella/duck/cheese souffle/goulash",
        error="salt for sugar/a broken thermometer/frozen stock/the wrong oven setting",
        sign="smoke/a sour smell/a loud bang/green foam",
        rescue="pancakes/toast with eggs/noodles from the corner shop/fried rice/baked beans",
        remark="the best evening in years/a taste of childhood/honest food/a brave choice",
        friend="sister/flatmate/neighbour/colleague",
        lesson="practise once before/read the recipe twice/keep the plan simple/taste it early",
    ),
    "I invited my {guest} to dinner and wanted to impress with {dish}, which I had never made. My "
    "{friend} warned me, and I did not listen. An hour before eight I noticed {sign} coming from "
    "the kitchen. The cause was {error}, and there was nothing left to save. With guests at the "
    "door I emptied the cupboard and served {rescue} on our finest plates. I confessed everything "
    "before the first bite. To my surprise they laughed, asked for a second helping and called it "
    "{remark}. We sat until two and sang. My {friend} still teases me about it. Next time I will "
    "{lesson}, whatever the cookbook says.",
    "At dinner for my {guest} the {dish} was lost to {error}, so we served {rescue} from the "
    "cupboard instead, and after a confession everybody laughed and was happy.",
    "To impress my {guest} I tried to make {dish} for the first time, although my {friend} had "
    "warned me. Shortly before eight {sign} came from the kitchen: {error} had ruined it. "
    "Therefore I served {rescue} on fine plates and confessed. However, instead of being cross "
    "they laughed, took a second helping and called it {remark}. From now on I will {lesson}.",
)
REPAIR = TextTemplate(
    gaps(
        thing="bicycle/washing machine/sewing machine/record player/typewriter",
        age="thirty/forty/twenty-five/fifty",
        fault="a grinding noise/a burnt smell/a loose belt/a stuck lever",
        quote="twice its price/three hundred euros/more than my rent/a month's pay",
        place="library/community centre/church hall/old fire station",
        expert="retired watchmaker/physics student/tram mechanic/former sailor",
        part="spring/rubber ring/copper wire/tiny cog",
        price="two euros/a smile/a cake/nothing at all",
        now="helps there on Thursdays/teaches others to solder/collects old screws/makes coffee",
    ),
    "My {thing} is {age} years old and I love it, so I was sad when it developed {fault}. The "
    "shop asked for {quote} and advised me to throw it away. A poster at the {place} mentioned a "
    "repair evening, and I carried the heavy thing there in the rain. A {expert} listened to it "
    "for a minute, smiled and took it apart on a towel. The culprit was a worn {part}. We made a "
    "new one together from scrap, and it cost me {price}. While we worked I learned more about "
    "machines than in ten years of school. It has run smoothly ever since. The evening changed me "
    "too: somebody who could not hold a screwdriver now {now}.",
    "The shop told me to throw away my old {thing}, but at a repair evening a {expert} took it "
    "apart and made a new {part} from scrap, which cost me {price}.",
    "When my beloved {thing} developed {fault} after {age} years, the shop wanted {quote} and "
    "told me to throw it away. Instead I carried it through the rain to the {place}, where a "
    "{expert} took it apart and found a worn {part}. Together we made another from scrap, so in "
    "the end I paid {price}. It runs again, and besides, I learned a lot: the person who could "
    "not use a screwdriver now {now}.",
)
POSTS = (LOST, NOISE, GARDEN, TRIP, COOKING, REPAIR)


SENSORS = TextTemplate(
    gaps(
        subject="bees/bats/salmon/storks/earthworms/seals",
        place="orchards/river deltas/city parks/mountain valleys/salt marshes",
        threat="pesticides/street lighting/drought/traffic noise/invasive plants",
        device="acoustic sensors/radio tags/thermal cameras/pressure loggers",
        count="forty/sixty/ninety/one hundred and twenty",
        seasons="two/three/four/five",
        model="a hidden Markov model/a random forest/a Bayesian network/a graph neural network",
        outcome="activity falls by a third/routes become longer/breeding starts later/groups "
        "become smaller",
    ),
    "Populations of {subject} in {place} are declining, and {threat} are suspected, but evidence "
    "is scarce because counts by hand are rare and disturb the animals. We installed {count} "
    "{device} in {place} and recorded {subject} for {seasons} seasons without interruption. "
    "{model} separates the signals of {subject} from weather and noise, and a paired design "
    "compares sites with and without {threat}. We find that {outcome} where {threat} are present, "
    "that the effect is strongest at night, and that it disappears within weeks when the exposure "
    "ends. Data, labels and code are published. The study suggests that short protected periods "
    "could help {subject} more than larger protected areas.",
    "Populations of {subject} have been declining in many regions, and {place} are no exception. "
    "Over the years several causes have been suspected, above all {threat}, yet solid evidence is "
    "still scarce. One reason is the way in which animals are usually observed. Counts by hand "
    "are rare, they depend on the weather and on the observer, and they disturb the very animals "
    "they are meant to protect. As a result, most surveys of {subject} say little about the night "
    "or about the weeks between two visits. In addition, sites with {threat} often differ from "
    "other sites in many respects, so that simple comparisons mislead. Whether short protected "
    "periods would help, or whether larger protected areas are needed, is therefore an open "
    "question. Answering it requires continuous signals from {place} over several seasons, and a "
    "design that separates the effect of the exposure from everything else.",
    "To close this gap, we installed {count} {device} in {place} and recorded {subject} for "
    "{seasons} seasons without interruption. First, sites were arranged in pairs: one site of "
    "each pair is exposed to {threat}, whereas the other is as similar as possible but without "
    "exposure. This paired design removes differences in soil, altitude and weather, because both "
    "members of a pair share them. Second, the recorded signals had to be separated from noise. "
    "For this step we train {model} on labels that two people assigned independently, and we "
    "check its decisions on seasons it has never seen. Then activity at night and by day is "
    "estimated for every site and week, together with an interval that says how certain the "
    "estimate is. Finally, we compare both members of each pair before, during and after an "
    "exposure, so that an effect which disappears when {threat} end can be told apart from a "
    "lasting one. If a recorder failed, its weeks were left out for both sites. Data, labels and "
    "code are published, for example the scripts that produce every figure, and therefore each "
    "step of the study can be repeated by others or applied to other populations of {subject} and "
    "to other protected areas. All decisions about the analysis were written down before the "
    "first season began.",
)
MATERIALS = TextTemplate(
    gaps(
        material="concrete/glass foam/bamboo panels/clay bricks/recycled steel",
        use="bridges/schools/harbour walls/bicycle tunnels/water towers",
        additive="rice husk ash/crushed shells/basalt fibres/paper sludge/volcanic dust",
        flaw="cracks/corrosion/frost damage/salt damage",
        test="freezing cycles/salt baths/bending tests/vibration tests",
        share="five/eight/twelve/fifteen",
        gain="twice as long/a third longer/half as long again",
        partner="a local workshop/two shipyards/a brick factory/a railway company",
    ),
    "{material} is a common material for {use}, yet {flaw} shorten its service life and repairs "
    "are expensive. We study whether {additive}, a waste that is burned or dumped today, can "
    "delay {flaw}. Together with {partner} we produced samples with different contents of "
    "{additive} and exposed them to {test} for eighteen months. Samples with {share} percent of "
    "{additive} lasted {gain} as the control, while strength and price stayed the same; higher "
    "contents made the material brittle. Microscope images show that fine particles fill the "
    "pores through which water enters. A pilot at one of the {use} confirms the laboratory "
    "results. The recipe needs no new machines and could turn a local waste into a resource.",
    "{material} is one of the most common materials for {use}, since it is cheap, strong and "
    "known to every builder. Its weakness shows only after years: {flaw} shorten the service "
    "life, and repairs are expensive because the structure has to be closed meanwhile. The damage "
    "usually starts when water enters through fine pores, so that much research has looked for "
    "ways to fill them. Many of the proposed coatings work well in the laboratory; however, they "
    "need new machines, or they raise the price, and therefore builders rarely adopt them. At the "
    "same time {additive} is produced in large amounts as a waste, which is burned or dumped "
    "today although its particles are fine enough to fill pores. Whether such a waste can delay "
    "{flaw} without making the material brittle has not been studied for long exposures, and "
    "results from a real pilot are missing altogether.",
    "Our method has three parts. First, together with {partner} we produced samples of {material} "
    "with different contents of {additive}, from none at all, which is the control, up to a "
    "content at which the mixture could hardly be worked. All other ingredients, the water and "
    "the time of hardening stayed the same, so that any difference between samples is due to the "
    "additive alone. Second, the samples were exposed to {test} for eighteen months. Every month "
    "we measured strength and weight, counted visible {flaw} and took microscope images of thin "
    "slices, because these show whether fine particles really fill the pores through which water "
    "enters. The person who counted did not know the recipe of a sample. Third, the best recipe "
    "was used in a pilot at one of the {use}: one half was built with the additive, the other "
    "half without, and both are inspected in the same way as the samples. In addition we asked "
    "for the price of every ingredient, since a recipe that is strong but expensive would not be "
    "adopted. Finally, service life is estimated from the month in which {flaw} first exceed a "
    "limit that was fixed before the study began; if a sample never reached the limit, it enters "
    "the estimate as still intact. No new machines were needed for any step, and the recipe with "
    "{share} percent was repeated on another day.",
)
LEARNING = TextTemplate(
    gaps(
        pupils="nursing students/primary pupils/apprentices/adult learners/exchange students",
        skill="mental arithmetic/vocabulary/reading scores/map reading/first aid",
        habit="cramming/rereading/highlighting/copying notes",
        remedy="short quizzes/peer teaching/spaced exercises/spoken summaries",
        length="six/nine/twelve/fifteen",
        schools="eight/eleven/fourteen/twenty",
        effect="remember more after a month/make half the errors/answer faster/ask new questions",
        tool="a phone application/a paper booklet/a radio programme/a card game",
    ),
    "Most {pupils} prepare for tests in {skill} by {habit}, which feels effective and is soon "
    "forgotten. We ask whether {remedy}, delivered by {tool}, lead to learning that lasts. In a "
    "randomised trial at {schools} schools, classes of {pupils} used either {remedy} or their "
    "usual {habit} for {length} weeks, with the same time on the task and the same teachers. "
    "Tests of {skill} were given at once, after a month and after half a year. Classes with "
    "{remedy} {effect}, although they felt less confident at the first test. Weak learners gained "
    "most. The costs are small, and teachers needed only one hour of training. We discuss why "
    "feelings of learning mislead and how lessons could be planned around delayed tests.",
    "Most {pupils} prepare for tests in {skill} by {habit}. The habit feels effective, since "
    "everything seems familiar on the evening before the test; however, what was learned in this "
    "way is soon forgotten. Psychologists have known for a century that feelings of learning "
    "mislead: what is easy today feels mastered, even though it cannot be recalled after a month. "
    "Many remedies have therefore been proposed, for example {remedy}, which ask learners to "
    "produce an answer instead of looking at one. Yet most of the evidence comes from "
    "laboratories, where tests follow within a day and the learners are volunteers. In ordinary "
    "classes the time is short, teachers have little training, and weak learners may lose "
    "confidence when a task feels hard. Whether the remedies work under such conditions, and "
    "whether their effect lasts for half a year, is not known.",
    "We answer this question with a randomised trial. First, {schools} schools agreed to take "
    "part, and in each of them classes of {pupils} were assigned by lot either to {remedy} or to "
    "their usual {habit}. Both groups spent the same time on the task and had the same teachers, "
    "so that a difference between them cannot be due to effort or to a better teacher. For "
    "{length} weeks the exercises were delivered by {tool}, because this needs only one hour of "
    "training and the costs are small. Second, tests of {skill} were given three times: at once, "
    "after a month and after half a year. The delayed tests contain new questions, otherwise "
    "learners could simply remember the old ones. Before each test everybody also wrote down how "
    "confident they felt, which shows whether feelings and results agree. Then the answers were "
    "marked by people who did not know the group. Finally, we estimate the effect for all "
    "learners and separately for weak learners, who had been named on the basis of an earlier "
    "test. If a learner missed a test, it was repeated within a week; the few who left the school "
    "are counted with the group they were assigned to. The plan of the analysis was published "
    "before the lessons began, and classes that had used {habit} received the other material "
    "after the trial.",
)
ABSTRACTS = (SENSORS, MATERIALS, LEARNING)


TEMPLATES: Mapping[Form, tuple[TextTemplate, ...]] = {"tldr": POSTS, "expansion": ABSTRACTS}


class WritingDraft(NamedTuple):
    """A source and a model pair about it."""

    source: str
    first: str
    second: str


def draw(form: Form, rng: random.Random) -> WritingDraft:
    """A frame of `form` with its gaps filled."""
    frame = rng.choice(TEMPLATES[form])
    filling = {gap: rng.choice(choices) for gap, choices in frame.gaps.items()}
    texts = (text.format(**filling) for text in (frame.source, frame.first, frame.second))
    return WritingDraft(*(text[0].upper() + text[1:] for text in texts))
